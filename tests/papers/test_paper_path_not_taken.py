"""The Path Not Taken: shift of the spectrum, angle of leading directions and bf16-aware sparsity, in closed form.

Not shown: the theory; that reinforcement learning and fine-tuning differ in this way, which a small model need not do:
the recipe reports it.
"""

import math
from pathlib import Path

import pytest
import torch

from learning.lookup import bind
from learning.models.policy import load_policy, save_policy
from schemas.recipe.load import load_recipe
from tasks.context import Context
from tasks.evaluate import run

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "path-not-taken.yaml"


@pytest.fixture(scope="module")
def report():
    return load_recipe(RECIPE, profile="tiny").stages["report"]


@pytest.fixture(scope="module")
def measures(report):
    """The functions that the recipe names, with its options."""
    return {use.use: bind(use) for use in report.weight_diff}


def test_the_spectrum_of_a_diagonal_and_of_a_turned_matrix(measures):
    before = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    after = torch.diag(torch.tensor([2.2, 1.0], dtype=torch.float64))
    assert measures["nss"](before, after) == pytest.approx(0.2 / math.sqrt(5), abs=1e-12)
    assert measures["nss"](before, after) == pytest.approx(0.0894, abs=5e-5)
    c, s = math.cos(math.radians(30)), math.sin(math.radians(30))
    turned = torch.tensor([[c, -s], [s, c]], dtype=torch.float64) @ before
    assert measures["nss"](before, turned) == pytest.approx(0, abs=1e-12)
    assert measures["principal_angle"](before, turned) == pytest.approx(30, abs=1e-9)


def test_what_bfloat16_shows_as_changed(measures):
    before, after = torch.tensor([1.0, 1.0]).double(), torch.tensor([1.0005, 1.01]).double()
    assert measures["bf16_sparsity"](before, after) == 0.5
    assert measures["bf16_sparsity"](before[:1], after[:1]) == 1.0
    assert measures["bf16_sparsity"](before[1:], after[1:]) == 0.0
    # The tolerance is relative, to the larger of both: 100 vs 100.05 is unchanged, 1e-4 vs 1.01e-4 and a zero are not.
    before = torch.tensor([100.0, 1e-4, 0.0, 1.0], dtype=torch.float64)
    after = torch.tensor([100.05, 1.01e-4, 1e-9, 1.001], dtype=torch.float64)
    assert [measures["bf16_sparsity"](b[None], a[None]) for b, a in zip(before, after, strict=True)] == [1, 0, 0, 1]


def test_updates_on_and_off_the_principal_entries_are_distinguished(measures):
    before = torch.diag(torch.tensor([9.0, 8.0, 7.0, 6.0, *[1e-3] * 6], dtype=torch.float64))
    on, off = before.clone(), before.clone()
    on[range(4), range(4)] += 1.0
    off[6:, :4] += 1e-2
    assert measures["principal_mask_overlap"](before, on) == 1.0
    assert measures["principal_mask_overlap"](before, off) < 0.1  # below chance: off the principals


def test_the_stage_measures_both_branches_against_their_start(report, tiny_policy_folder, tmp_path):
    moved = load_policy(tiny_policy_folder)
    with torch.no_grad():
        for name, parameter in moved.model.named_parameters():
            if name.endswith("up_proj.weight"):
                parameter.mul_(1.5)
    save_policy(moved, tmp_path / "moved")
    folders = dict.fromkeys(report.models, tiny_policy_folder) | {"tuned": tmp_path / "moved"}
    stage = report.model_copy(update={"limit": 2, "num_generations": 1})
    inputs = {f"models.{name}": folder for name, folder in folders.items()}
    metrics = run(stage, Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0)).metrics
    sizes = {n: p.numel() for n, p in moved.model.named_parameters() if p.ndim == 2}
    touched = sum(size for name, size in sizes.items() if name.endswith("up_proj.weight"))
    assert metrics["nss.tuned"] == pytest.approx(0.5 * touched / sum(sizes.values()), rel=1e-5)
    assert metrics["principal_angle.tuned"] < 0.1
    assert metrics["bf16_sparsity.tuned"] == pytest.approx(
        1 - touched / sum(p.numel() for p in moved.model.parameters())
    )
    assert (metrics["nss.reinforced"], metrics["bf16_sparsity.reinforced"]) == (0.0, 1.0)
    assert "nss.cold_start" not in metrics
