"""Behavior Knowledge Merge in Reinforced Agentic Models: unique updates are kept and shared ones averaged, with the
exact values.

Not shown: a merged model better than its specialists; agents with tools. Unsure: how far unique updates are scaled; the
released code's rule is taken, with counts over the whole model.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from learning.merge.tensor import Method
from schemas.recipe.load import load_recipe
from tasks.context import Context
from tasks.merge import run

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "ram.yaml"
VECTORS = [[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 4.0, 0.0]]


@pytest.fixture(scope="module")
def stages():
    return load_recipe(RECIPE).stages


def merged(stage, tmp_path, vectors, base=(0.25, -1.0, 0.5, 2.0)):
    """What a merge stage of the recipe makes of a base with one tensor, less that base."""
    inputs = {}
    for port, delta in (("base_model", [0.0] * 4), *((f"models.{i}.model", v) for i, v in enumerate(vectors))):
        inputs[port] = tmp_path / port
        inputs[port].mkdir(parents=True)
        (inputs[port] / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 0}))
        tensor = torch.tensor(base) + torch.tensor(delta)
        save_file({"norm.weight": tensor}, inputs[port] / "model.safetensors")
    stage = stage.model_copy(update={"models": stage.models[: len(vectors)]})
    (tmp_path / "out").mkdir()
    run(stage, Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0))
    return load_file(tmp_path / "out" / "outputs" / "model" / "model.safetensors")["norm.weight"] - torch.tensor(base)


@pytest.mark.parametrize(
    ("name", "want"),
    [("ram", [1.0, 3.0, 3.0, 0.0]), ("ram_plus", [1.2, 3.6, 3.0, 0.0]), ("average", [0.5, 1.5, 3.0, 0.0])],
)
def test_the_papers_example_through_the_stages_of_the_recipe(stages, tmp_path, name, want):
    torch.testing.assert_close(merged(stages[name], tmp_path, VECTORS), torch.tensor(want))


@pytest.mark.parametrize(("name", "want"), [("ram", [-1.0, 3.0, -3.0, 0.0]), ("ram_plus", [-1.2, 3.6, -3.0, 0.0])])
def test_a_decrease_is_a_change_like_an_increase(stages, tmp_path, name, want):
    vectors = [[-1.0, 0.0, -2.0, 0.0], [0.0, 3.0, -4.0, 0.0]]
    torch.testing.assert_close(merged(stages[name], tmp_path, vectors), torch.tensor(want))


def test_a_third_task_dilutes_the_average_and_not_ram(stages, tmp_path):
    three = [*VECTORS, [0.0, 0.0, 0.0, 0.0]]
    torch.testing.assert_close(merged(stages["ram"], tmp_path / "a", three), torch.tensor([1.0, 3.0, 3.0, 0.0]))
    torch.testing.assert_close(merged(stages["average"], tmp_path / "b", three), torch.tensor([1 / 3, 1.0, 2.0, 0.0]))


@pytest.mark.parametrize("r", [1.0, 1.2, 2.0])
def test_shared_entries_do_not_hang_on_r(stages, tmp_path, r):
    stage = stages["ram_plus"].model_copy(update={"parameters": {"r": r, "epsilon": 1e-5}})
    # one shared entry, and one or two of a model's own: factors 1 + (r − 1)·1 and 1 + (r − 1)/2
    got = merged(stage, tmp_path, [[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 4.0, 1.0]])
    torch.testing.assert_close(got, torch.tensor([r, 3 * (1 + (r - 1) / 2), 3.0, 1 + (r - 1) / 2]))


def test_more_shared_than_unique_scales_by_r_and_no_further(stages, tmp_path):
    got = merged(stages["ram_plus"], tmp_path, [[1.0, 2.0, 4.0, 0.0], [0.0, 4.0, 2.0, 0.0]])
    torch.testing.assert_close(got, torch.tensor([1.2, 3.0, 3.0, 0.0]))


def test_what_is_below_the_threshold_is_no_change(stages, tmp_path):
    assert stages["ram"].parameters == {"epsilon": 1e-5}
    assert stages["ram_plus"].parameters == {"epsilon": 1e-5, "r": 1.2}
    got = merged(stages["ram"], tmp_path, [[1.0, 0.0, 2.0, 0.0], [2e-6, 3.0, 4.0, 5e-6]])
    torch.testing.assert_close(got, torch.tensor([1.0, 3.0, 3.0, 0.0]))


def test_three_branches_leave_one_base(stages):
    branches = [stages[name] for name in ("add", "reverse", "count")]
    assert {stage.model for stage in branches} == {"cold_start"} == {stages["ram"].base_model}
    assert len({stage.prompts for stage in branches}) == 3
    assert [m.model for m in stages["ram"].models] == ["add", "reverse", "count"]
    assert Method("ram_plus").takes_base
