"""`--tiny`: the same graph, small; imported configurations run with it from end to end."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from flows.planning.recipe_plan import plan_recipe
from flows.planning.tiny import COMPLETION, ROWS, STEPS, derive_tiny
from flows.runs.start import start_run
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.importers.convert import import_config
from schemas.package import ROOT
from schemas.recipe.load import load_recipe

FIXTURES = ROOT / "tests/schemas/importers/fixtures"
LOCAL = [
    *(
        "axolotl/dpo.yaml",
        "axolotl/grpo.yaml",
        "axolotl/lora_chat.yaml",
        "axolotl/misspelt.yaml",
        "axolotl/pretrain.yaml",
    ),
    *(
        f"llama-factory/{name}.yaml"
        for name in ("dpo", "full_deepspeed", "kto", "lora_sft", "misspelt", "pretrain", "qlora")
    ),
    *(f"mergekit/{name}.yaml" for name in ("linear_misspelt", "slerp", "ties")),
    *("open-instruct/dpo.yaml", "open-instruct/grpo.sh", "open-instruct/sft.yaml"),
    *(f"oumi/{name}.yaml" for name in ("dpo", "grpo", "lora_fsdp", "qlora", "sft_full")),
    *(f"trl/{name}.yaml" for name in ("dpo", "grpo", "kto", "misspelt_sft", "sft_lora")),
    *("verl/grpo.sh", "verl/misspelt.sh", "verl/ppo.yaml", "verl/sft.yaml", "verl/sft_multiturn.sh"),
]
"""Configurations whose data are files here."""
QUICK = ("axolotl/lora_chat.yaml", "trl/grpo.yaml")


def small(path, tmp_path):
    recipe = load_recipe(path)
    return recipe, load_recipe(path, top=derive_tiny(recipe, Layout(tmp_path)))


@pytest.mark.parametrize("name", ["chats", "quickstart", "steps"])
def test_the_graph_is_the_same_and_everything_is_small(name, tmp_path):
    recipe, tiny = small(ROOT / f"recipes/{name}.yaml", tmp_path)
    assert list(tiny.steps) == list(recipe.steps)
    for step in recipe.steps:
        assert [port.steps for port in tiny.ports(step)] == [port.steps for port in recipe.ports(step)]
    assert tiny.name == f"{recipe.name}-tiny"
    assert tiny.promotion is None
    for stage in tiny.stages.values():
        assert getattr(stage, "max_steps", STEPS) == STEPS
        assert getattr(stage, "max_completion_length", COMPLETION) <= COMPLETION
        assert stage.resources.num_cpus == 1
        assert all(source.max_rows <= ROWS for source in getattr(stage, "sources", []))


def test_a_model_of_the_hub_becomes_a_small_one_of_its_family(tmp_path):
    (tmp_path / "r.yaml").write_text("""
stages:
  sft: {kind: sft, model: "hub:Qwen/Qwen2.5-72B-Instruct", data: path:x.jsonl, optim: adamw_8bit, max_length: 8192,
        gradient_accumulation_steps: 64, warmup_steps: 30, num_train_epochs: 3, use_peft: true}
  dpo: {kind: preference, model: sft, reference: "hub:Qwen/Qwen2.5-72B-Instruct", data: path:y.jsonl}
""")
    _, tiny = small(tmp_path / "r.yaml", tmp_path)
    base = tiny.stages["tiny_base"]
    assert (base.config["model_type"], base.config["num_hidden_layers"]) == ("qwen2", 2)
    assert [port.steps for port in tiny.ports("dpo") if port.path == "reference"] == [("tiny_base",)]
    sft = tiny.stages["sft"]
    assert (sft.model, sft.optim, sft.max_length, sft.use_peft) == ("tiny_base", "adamw", 512, True)
    assert (sft.warmup_steps, sft.gradient_accumulation_steps, sft.long_rows) == (0, 1, "truncate")


def test_an_unknown_family_is_refused_by_name(tmp_path):
    (tmp_path / "r.yaml").write_text("stages:\n  sft: {kind: sft, model: hub:org/strange, data: path:x.jsonl}\n")
    with pytest.raises(
        PlanError, match="hub:org/strange is not on this machine, and its name tells none of the families"
    ):
        small(tmp_path / "r.yaml", tmp_path)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in LOCAL]
)
def test_an_imported_configuration_runs(case, tmp_path, monkeypatch):
    for name in ("data", "my_rewards"):
        shutil.copytree(FIXTURES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / Path(case).name
    shutil.copyfile(FIXTURES / case, config)
    made = import_config([config], None, tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text(made.text)
    layout = Layout(tmp_path)
    plan = plan_recipe(tmp_path / "recipe.yaml", layout, tiny=True)
    printed = io.StringIO()
    assert start_run(plan, layout, "inprocess", Console(file=printed, width=200)) == 0, printed.getvalue()
