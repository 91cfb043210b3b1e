"""The merge kind on whole models: documents, slices, gradients, refusals, memory."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from learning.models.policy import load_policy
from schemas.errors import StepError
from schemas.stages.merge import Merge
from tasks.context import Context
from tasks.merge import run

LAYER = "model.layers.{}.mlp.up_proj.weight"


@pytest.fixture
def models(tiny_policy_folder, tmp_path):
    """Three models of one shape with different weights."""
    folders = {"a": tiny_policy_folder}
    for seed, name in enumerate(("b", "c"), start=1):
        folders[name] = copy_of(tiny_policy_folder, tmp_path / name, seed)
    return folders


def copy_of(folder, to, seed=None):
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        state = load_file(folder / "model.safetensors")
        moved = {name: t + 0.1 * torch.randn(t.shape, generator=generator) for name, t in state.items()}
        save_file(moved, to / "model.safetensors", metadata={"format": "pt"})
    return to


def merge(folders, tmp_path, name="merged", seed=0, **document):
    stage = Merge(kind="merge", **document)
    inputs = {}
    for i, entry in enumerate(stage.models):
        inputs[f"models.{i}.model"] = folders[entry.model]
    for i, piece in enumerate(stage.slices):
        inputs |= {f"slices.{i}.sources.{j}.model": folders[source.model] for j, source in enumerate(piece.sources)}
    if stage.base_model:
        inputs["base_model"] = folders[stage.base_model]
    context = Context(inputs, tmp_path / name, tmp_path / "checkpoints", seed)
    context.folder.mkdir()
    result = run(stage, context)
    assert sorted(p.name for p in context.folder.iterdir()) == ["outputs"]
    return result, context.folder / "outputs" / "model"


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_streamed_linear_equals_the_sum_in_memory_and_loads(models, tmp_path):
    document = [{"model": "a", "parameters": {"weight": 1}}, {"model": "b", "parameters": {"weight": 3}}]
    result, folder = merge(models, tmp_path, merge_method="linear", models=document)
    a, b, got = weights(models["a"]), weights(models["b"]), weights(folder)
    assert got.keys() == a.keys()
    for name in got:
        torch.testing.assert_close(
            got[name], (0.25 * a[name].double() + 0.75 * b[name].double()).float(), rtol=0, atol=0
        )
    assert result.metrics == {"models": 2, "tensors": len(a), "parameters": sum(t.numel() for t in a.values())}
    policy = load_policy(folder)
    tied = policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight
    assert tied


def test_equal_inputs_give_equal_bytes_and_the_seed_counts(models, tmp_path):
    document = {
        "merge_method": "dare_ties",
        "base_model": "a",
        "models": [{"model": "a"}, {"model": "b"}, {"model": "c"}],
        "parameters": {"weight": 0.5, "density": 0.5, "int8_mask": True, "lambda": 0.9},
    }
    folders = [merge(models, tmp_path, name, seed, **document)[1] for name, seed in (("x", 1), ("y", 1), ("z", 2))]
    x, y, z = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert x == y
    assert x != z


def test_an_unlisted_base_is_the_same_as_a_listed_one(models, tmp_path):
    rest = {"merge_method": "ties", "base_model": "a", "parameters": {"weight": 1.0, "density": 0.4}}
    _, x = merge(models, tmp_path, "x", models=[{"model": "a"}, {"model": "b"}, {"model": "c"}], **rest)
    _, y = merge(models, tmp_path, "y", models=[{"model": "b"}, {"model": "c"}], **rest)
    assert (x / "model.safetensors").read_bytes() == (y / "model.safetensors").read_bytes()


@pytest.mark.parametrize("merge_method", ["ties", "dare_linear", "dare_ties"])
def test_a_model_without_density_keeps_all_its_differences(models, tmp_path, merge_method):
    """As in mergekit, whose density is 1 unless it is given."""
    made = {}
    for name, own in (("without", {}), ("whole", {"density": 1.0}), ("half", {"density": 0.5})):
        listed = [
            {"model": "b", "parameters": {"weight": 0.5, "density": 0.4}},
            {"model": "c", "parameters": {"weight": 0.3, **own}},
        ]
        _, folder = merge(models, tmp_path, name, merge_method=merge_method, base_model="a", models=listed)
        made[name] = (folder / "model.safetensors").read_bytes()
    assert made["without"] == made["whole"] != made["half"]


def test_gradients_filters_and_precedence(models, tmp_path):
    t = [{"filter": "up_proj", "value": [0, 1]}, {"filter": "embed", "value": 1.0}, {"value": 0.0}]
    document = {"merge_method": "slerp", "base_model": "a", "models": [{"model": "a"}, {"model": "b"}]}
    _, folder = merge(models, tmp_path, parameters={"t": t}, **document)
    a, b, got = weights(models["a"]), weights(models["b"]), weights(folder)
    assert torch.equal(got[LAYER.format(0)], a[LAYER.format(0)])
    assert torch.equal(got[LAYER.format(1)], b[LAYER.format(1)])
    assert torch.equal(got["model.embed_tokens.weight"], b["model.embed_tokens.weight"])
    assert torch.equal(got["model.norm.weight"], a["model.norm.weight"])
    own = [{"model": "a"}, {"model": "b", "parameters": {"weight": 0.0}}]
    _, first = merge(models, tmp_path, "own", merge_method="linear", models=own, parameters={"weight": 2.0})
    assert torch.equal(weights(first)[LAYER.format(1)], a[LAYER.format(1)])


def test_slices_stack_layers_and_renumber_them(models, tmp_path):
    slices = [
        {"sources": [{"model": "a", "layer_range": [0, 2]}]},
        {"sources": [{"model": "b", "layer_range": [1, 2]}]},
    ]
    _, folder = merge(models, tmp_path, merge_method="passthrough", slices=slices)
    a, b, got = weights(models["a"]), weights(models["b"]), weights(folder)
    assert torch.equal(got[LAYER.format(0)], a[LAYER.format(0)])
    assert torch.equal(got[LAYER.format(2)], b[LAYER.format(1)])
    assert torch.equal(got["model.embed_tokens.weight"], a["model.embed_tokens.weight"])
    assert torch.equal(got["model.norm.weight"], b["model.norm.weight"])
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.num_hidden_layers == len(model.config.layer_types) == 3
    assert torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all()


def test_sharded_models_and_precisions(models, tmp_path):
    a = weights(models["a"])
    sharded = copy_of(models["a"], tmp_path / "sharded")
    (sharded / "model.safetensors").unlink()
    names, index = sorted(a), {}
    for i, part in enumerate((names[::2], names[1::2])):
        save_file({name: a[name] for name in part}, sharded / f"model-{i}.safetensors")
        index |= dict.fromkeys(part, f"model-{i}.safetensors")
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    document = {"merge_method": "linear", "models": [{"model": "s"}, {"model": "b"}], "parameters": {"weight": 0.5}}
    _, folder = merge(models | {"s": sharded}, tmp_path, out_dtype="bfloat16", **document)
    got, b = weights(folder), weights(models["b"])
    assert torch.equal(got["model.norm.weight"], ((a["model.norm.weight"] + b["model.norm.weight"]) / 2).bfloat16())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # peft asks transformers for it
def test_an_adapter_is_folded_first(models, tiny_policy, tmp_path):
    from peft import LoraConfig, get_peft_model

    folder = tmp_path / "adapter"
    adapted = get_peft_model(tiny_policy.model, LoraConfig(r=2, target_modules=["up_proj"], init_lora_weights=False))
    adapted.save_pretrained(folder)
    copy_of(models["a"], folder / "base")
    _, merged_folder = merge(models | {"l": folder}, tmp_path, merge_method="passthrough", models=[{"model": "l"}])
    expected = load_policy(folder).model.state_dict()[LAYER.format(1)]
    assert torch.equal(weights(merged_folder)[LAYER.format(1)], expected)
    assert not torch.equal(expected, weights(models["a"])[LAYER.format(1)])


def reshaped(models, tmp_path):
    state = weights(models["b"])
    state[LAYER.format(1)] = torch.zeros(8, 32)
    save_file(state, models["b"] / "model.safetensors")


def retokenized(models, tmp_path):
    file = models["b"] / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] = dict(
        reversed([(t, len(content["model"]["vocab"]) - 1 - i) for t, i in content["model"]["vocab"].items()])
    )
    file.write_text(json.dumps(content))


def untied(models, tmp_path):
    state = weights(models["b"])
    save_file(state | {"lm_head.weight": torch.zeros(3, 32)}, models["b"] / "model.safetensors")
    config = json.loads((models["b"] / "config.json").read_text())
    (models["b"] / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))


def cut(models, tmp_path):
    file = models["b"] / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("spoil", "document", "message"),
    [
        (reshaped, {}, r"up_proj.weight is \[64, 32\] .* and \[8, 32\]"),
        (retokenized, {}, "another tokenizer"),
        (untied, {}, "lm_head.weight, which the first or base model lacks"),
        (cut, {}, "cut short"),
        (None, {"parameters": {"weigth": 1.0}}, "did you mean weight"),
        (None, {"parameters": {}}, "no weight for tensor"),
        (None, {"merge_method": "lineer"}, "no merge method `lineer`"),
        (None, {"merge_method": "ties"}, "base_model is missing"),
        (None, {"parameters": {"weight": []}}, "empty list"),
        (None, {"parameters": {"weight": 1.0, "normalize": "perhaps"}}, "normalize"),
        (None, {"models": [], "slices": [{"sources": [{"model": "a", "layer_range": [0, 9]}]}]}, "2 layers"),
    ],
)
def test_refusals(models, tmp_path, spoil, document, message):
    if spoil:
        spoil(models, tmp_path)
    whole = {
        "merge_method": "linear",
        "models": [{"model": "a"}, {"model": "b"}],
        "parameters": {"weight": 0.5},
    }
    with pytest.raises(StepError, match=message):
        merge(models, tmp_path, **(whole | document))


CHILD = """
import resource, sys
from pathlib import Path
from schemas.stages.merge import Merge
from tasks.context import Context
from tasks.merge import run
root = Path(sys.argv[1])
import torch
def peak():
    return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])
before = peak()
stage = Merge(kind='merge', merge_method='ties', base_model='a', models=[{'model': 'b'}, {'model': 'c'}],
              parameters={'weight': 1.0, 'density': 0.5}, dtype='float32')
inputs = {'base_model': root / 'a', 'models.0.model': root / 'b', 'models.1.model': root / 'c'}
run(stage, Context(inputs, root / 'out', root / 'checkpoints', 0))
assert 'transformers' not in sys.modules  # 0.4 GB, needed only for adapters and GGUF files
print((peak() - before) // 1024)
"""


def test_memory_is_bounded_by_the_largest_tensor_and_not_by_the_models(tmp_path):
    """Three models of 96 MB, 12 tensors of 8 MB each: a merge that held them would need 384 MB more."""
    for seed, name in enumerate("abc"):
        (tmp_path / name).mkdir()
        generator = torch.Generator().manual_seed(seed)
        state = {f"model.layers.{i}.w": torch.randn(1024, 2048, generator=generator) for i in range(12)}
        save_file(state, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 12}))
    (tmp_path / "out").mkdir()
    child = [sys.executable, "-c", CHILD, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(child, capture_output=True, text=True, env=environment, check=True)
    assert int(done.stdout) < 160


def test_ram_plus_counts_over_the_whole_model(models, tmp_path):
    # `b` and `c` change one entry of a norm together, and alone one and two entries of other tensors.
    moves = {
        "b": {"model.norm.weight": [0], LAYER.format(0): [0]},
        "c": {"model.norm.weight": [0], LAYER.format(1): [0, 1]},
    }
    base = weights(models["a"])
    for name, where in moves.items():
        state = {k: t.clone() for k, t in base.items()}
        for tensor, entries in where.items():
            state[tensor].view(-1)[entries] += 1.0
        save_file(state, models[name] / "model.safetensors", metadata={"format": "pt"})
    document = {"base_model": "a", "models": [{"model": "b"}, {"model": "c"}], "parameters": {"r": 1.2}}
    got = weights(merge(models, tmp_path, merge_method="ram_plus", **document)[1])
    moved = {k: (got[k] - base[k]).view(-1) for k in got}
    torch.testing.assert_close(moved[LAYER.format(0)][:2], torch.tensor([1.2, 0.0]))  # shared 1, unique 1
    torch.testing.assert_close(moved[LAYER.format(1)][:3], torch.tensor([1.1, 1.1, 0.0]))  # shared 1, unique 2
    torch.testing.assert_close(moved["model.norm.weight"][:2], torch.tensor([1.0, 0.0]))
