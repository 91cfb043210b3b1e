"""`posttrain export hf|gguf`: folders that transformers loads strictly, with card, template and stops."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from flows.cli import app
from flows.publishing.model_export import export_gguf, export_hf
from flows.publishing.new_folder import open_new_folder
from learning.models.adapters import attach_adapters
from learning.models.policy import load_policy, save_policy, save_trained
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.training import LoRA
from tests.learning.models.test_gguf import IDS, make_policy


@pytest.fixture
def layout(tmp_path, monkeypatch):
    (tmp_path / "lab").mkdir()
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path / "lab"))
    return Layout(tmp_path / "lab")


@pytest.fixture
def folder(tmp_path):
    save_policy(make_policy("qwen2"), tmp_path / "model")
    return tmp_path / "model"


def load_strictly(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="auto")
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def test_a_model_in_shards_of_a_chosen_size_loads_strictly(layout, folder, tmp_path):
    written = export_hf(layout, str(folder), tmp_path / "out", "0.1MB")
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 1
    assert all((tmp_path / "out" / name).stat().st_size < 200_000 for name in shards)
    assert torch.equal(logits(load_strictly(tmp_path / "out")), logits(load_policy(folder).model))
    assert written.files == len(list((tmp_path / "out").iterdir()))
    names = set(json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"])
    assert "lm_head.weight" not in names  # tied
    assert "lab" not in (tmp_path / "out" / "config.json").read_text()


def test_template_stops_and_card_come_along(layout, folder, tmp_path):
    export_hf(layout, str(folder), tmp_path / "out", "5GB")
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == [1]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) == "a<eos>"
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "# model" in card


def test_adapters_are_merged_and_the_precision_stays(layout, tmp_path):
    policy = make_policy("llama")
    policy.model.to(torch.bfloat16)
    adapted = attach_adapters(policy.model, LoRA(use_peft=True, lora_r=2))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    policy.model = adapted
    (tmp_path / "adapter").mkdir()
    save_trained(policy, tmp_path / "adapter", LoRA(use_peft=True))
    export_hf(layout, str(tmp_path / "adapter"), tmp_path / "out", "5GB")
    model = load_strictly(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    merged = load_policy(tmp_path / "adapter", dtype="bfloat16").model
    assert torch.equal(logits(model), logits(merged))
    base = load_policy(tmp_path / "adapter" / "base", dtype="bfloat16").model
    assert not torch.equal(logits(merged), logits(base))


def test_gguf_round_trip_of_a_command(layout, folder, tmp_path):
    printed = CliRunner().invoke(
        app, ["export", "gguf", str(folder), str(tmp_path / "out"), "--type", "f16"], catch_exceptions=False
    )
    assert printed.exit_code == 0
    assert "2 files" in printed.stdout
    file = tmp_path / "out" / "model-f16.gguf"
    back = export_hf(layout, str(file), tmp_path / "back", "5GB")
    assert back.bytes > 0
    weights = load_strictly(tmp_path / "back").state_dict()
    for name, tensor in load_policy(folder).model.state_dict().items():
        assert torch.equal(weights[name], tensor if tensor.ndim == 1 else tensor.half().float())


def test_a_folder_with_something_in_it_is_left_alone(layout, folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    with pytest.raises(PlanError, match="exists already"):
        export_hf(layout, str(folder), tmp_path / "out", "5GB")
    with pytest.raises(PlanError, match="exists already"):
        export_gguf(layout, str(folder), tmp_path / "out", "f16")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes"]


def test_what_fails_leaves_nothing(tmp_path):
    def fail():
        with open_new_folder(tmp_path / "out") as fresh:
            (fresh / "half").write_text("")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["hf", "model"],
        ["bom", "model", "folder"],
        ["gguf", "model", "folder", "--send"],
    ],
)
def test_arguments_that_do_not_fit_are_refused(words, layout):
    result = CliRunner().invoke(app, ["export", *words])
    assert isinstance(result.exception, PlanError)


def test_a_size_that_is_none_is_refused(layout, folder, tmp_path):
    with pytest.raises(PlanError, match="5GB"):
        export_hf(layout, str(folder), tmp_path / "out", "big")
