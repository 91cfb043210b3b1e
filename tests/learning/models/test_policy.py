import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from learning.models.policy import Policy, load_outline, load_policy, save_policy, set_determinism
from schemas.errors import StepError
from tests.models.families import make_family

IDS = torch.arange(6, 60)[None]


def files(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def test_what_is_saved_is_loaded_and_saved_again_to_the_same_bytes(tiny_policy, tiny_policy_folder, tmp_path):
    loaded = load_policy(tiny_policy_folder)
    with torch.no_grad():
        assert torch.equal(loaded.model(IDS).logits, tiny_policy.model(IDS).logits)
    assert loaded.max_length == 128
    assert loaded.tokenizer.encode("a b\n<eos>") == tiny_policy.tokenizer.encode("a b\n<eos>")
    save_policy(loaded, tmp_path / "again")
    assert files(tmp_path / "again") == files(tiny_policy_folder)
    written = "".join(f.read_text() for f in tiny_policy_folder.glob("*.json"))
    assert str(tmp_path) not in written


def test_a_tied_head_is_written_once_and_still_tied(tiny_policy_folder):
    assert "lm_head.weight" not in load_file(tiny_policy_folder / "model.safetensors")
    model = load_policy(tiny_policy_folder).model
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_half_precision_is_kept(tiny_policy_folder, tmp_path):
    policy = load_policy(tiny_policy_folder, dtype="bfloat16")
    save_policy(policy, tmp_path / "half")
    assert {t.dtype for t in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_models_own_limit_is_the_smaller_one(tiny_policy, tmp_path):
    tiny_policy.tokenizer.model_max_length = 10**30
    save_policy(tiny_policy, tmp_path / "a")
    assert load_policy(tmp_path / "a").max_length == 128


def harmed(folder, harm):
    weights = load_file(folder / "model.safetensors")
    name = "model.norm.weight"
    if harm == "missing":
        del weights[name]
    if harm == "shape":
        weights[name] = torch.zeros(5)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if harm == "cut":
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-7])
    if harm == "kind":
        (folder / "config.json").write_text(json.dumps({"model_type": "no_such"}))
    if harm == "json":
        (folder / "config.json").write_text("{")
    if harm == "empty":
        (folder / "config.json").unlink()
    if harm == "pickle":
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize("harm", ["missing", "shape", "cut", "kind", "json", "empty", "pickle"])
def test_a_folder_without_a_complete_model_is_refused(tiny_policy_folder, harm):
    harmed(tiny_policy_folder, harm)
    with pytest.raises(StepError, match="policy: "):
        load_policy(tiny_policy_folder)


@pytest.mark.parametrize(("kind", "name"), [("deepseek_v3", "kv_a_layernorm.weight"), ("falcon_h1", "conv1d.bias")])
def test_no_family_starts_from_random_weights_in_silence(tiny_policy, tmp_path, kind, name):
    """Also families whose tensors `validate` does not know."""
    save_policy(Policy(make_family(kind), tiny_policy.tokenizer, 96), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = next(own for own in sorted(weights) if own.endswith(name))
    whole = weights.pop(lost)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StepError, match=f"weights do not fit config.json, 1 differ, first {lost}"):
        load_policy(tmp_path)
    added = {lost: whole, "model.layers.9.mlp.up_proj.weight": torch.zeros(3)}
    save_file({**weights, **added}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StepError, match=r"makes a model without model\.layers\.9\.mlp\.up_proj\.weight \(1 such"):
        load_policy(tmp_path)


def test_further_prediction_heads_are_left_out(tiny_policy, tmp_path):
    save_policy(Policy(make_family("glm4_moe", num_nextn_predict_layers=1), tiny_policy.tokenizer, 96), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    ahead = {"model.layers.2.eh_proj.weight": torch.zeros(3), "mtp.layers.0.norm.weight": torch.zeros(3)}
    save_file({**weights, **ahead}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert load_policy(tmp_path).max_length == 128


def test_determinism_seeds_every_generator():
    def drawn():
        import numpy as np

        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    set_determinism(5, 1)
    first = drawn()
    set_determinism(5, 1)
    assert drawn() == first
    set_determinism(6, 1)
    assert drawn() != first
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 1


def test_an_outline_is_the_policy_without_its_weights(tiny_policy, tiny_policy_folder, tmp_path):
    outline = load_outline(tiny_policy_folder, dtype="bfloat16")
    assert outline.max_length == 128
    assert outline.model.dtype == torch.bfloat16
    assert {p.device.type for p in outline.model.parameters()} == {"meta"}
    assert [p.shape for p in outline.model.parameters()] == [p.shape for p in tiny_policy.model.parameters()]
    assert outline.tokenizer.get_vocab() == tiny_policy.tokenizer.get_vocab()
    with pytest.raises(StepError, match="this model cannot be loaded"):
        load_outline(tmp_path)
