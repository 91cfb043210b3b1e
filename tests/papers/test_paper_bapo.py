"""BAPO: the recipe's controllers raise the upper bound exactly until positive advantages reach their share.

Not shown: AIME and entropy curves at 7B and 32B. Unsure: which bound moves first; the recipe moves the lower one, as
the released code does, and both orders are options.
"""

from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.controllers import compute_positive_share
from learning.algorithm.policy_losses.policy_gradient import clipped
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "bapo.yaml"


def columns(ratios, advantages):
    behav = torch.full((len(ratios),), -3.0, dtype=torch.float64)
    lp = behav + torch.tensor(ratios, dtype=torch.float64).log()
    return {"lp_T": lp, "lp_behav_T": behav, "advantage_T": torch.tensor(advantages, dtype=torch.float64)}


def algorithm(**options):
    """The recipe's algorithm, its controls with some options exchanged."""
    stage = load_recipe(RECIPE, profile="tiny").stages["trained"]
    control = {name: use.model_copy(update=options) for name, use in stage.controllers.items()}
    return bind_algorithm(stage.model_copy(update={"controllers": control}), {})


def bounds(batch_columns, **options):
    return {name: part.ask(0, batch_columns) for name, part in algorithm(**options).controllers.items()}


def test_the_first_bound_with_the_share_is_taken():
    batch_columns = columns([2.0, 0.95, 0.68], [1.0, -1.0, -1.0])
    result = bounds(batch_columns, low=[0.6, 0.6])
    assert result == pytest.approx({"low": 0.4, "high": 0.65}, abs=1e-12)
    ratio, advantage = (batch_columns["lp_T"] - batch_columns["lp_behav_T"]).exp(), batch_columns["advantage_T"]
    assert compute_positive_share(ratio, advantage, 0.6, 1.65) == pytest.approx(1.65 / 3.28, abs=1e-12)
    assert compute_positive_share(ratio, advantage, 0.6, 1.60) < 0.5
    assert round(compute_positive_share(ratio, advantage, 0.6, 1.65), 3) == 0.503


def test_fixed_bounds_leave_negative_advantages_the_larger_share():
    batch_columns = columns([2.0, 0.95, 0.68], [1.0, -1.0, -1.0])
    ratio = (batch_columns["lp_T"] - batch_columns["lp_behav_T"]).exp()
    assert round(compute_positive_share(ratio, batch_columns["advantage_T"], 0.6, 1.2), 3) == 0.424


def test_a_balanced_batch_moves_no_bound_and_an_unreachable_one_goes_to_the_ends():
    balanced, unreachable = columns([1.0, 1.0], [1.0, -1.0]), columns([1.0, 1.0], [0.01, -1.0])
    for first in ("low", "high"):
        assert bounds(balanced, first=first) == pytest.approx({"low": 0.4, "high": 0.2})
        assert bounds(unreachable, first=first) == pytest.approx({"low": 0.1, "high": 2.0})


def test_the_lower_bound_moves_first_to_its_end():
    # N is 0.96 + 0.90 once c_low is at its end, 0.96 + 0.68 where it stays at 0.6.
    batch_columns = columns([2.0, 0.96, 0.68], [1.0, -1.0, -1.0])
    assert bounds(batch_columns) == pytest.approx({"low": 0.1, "high": 0.9}, abs=1e-12)
    assert bounds(batch_columns, first="high") == pytest.approx({"low": 0.4, "high": 0.65}, abs=1e-12)


def test_the_bounds_reach_the_loss():
    """A token at ratio 1.5 with A > 0 has a gradient under the solved bounds and none under fixed ones."""
    batch_columns = columns([1.5, 2.0, 0.95, 0.68], [1.0, 1.0, -1.0, -1.0])
    batch_columns["advantage_T"] = torch.tensor([0.5, 0.5, -1.0, -1.0], dtype=torch.float64)
    numbers = bounds(batch_columns, low=[0.6, 0.6])
    settled = algorithm().settled(numbers)
    log_ratio = (batch_columns["lp_T"] - batch_columns["lp_behav_T"]).requires_grad_()
    loss = settled.policy_loss.ask(0, {"log_ratio_T": log_ratio, "advantage_T": batch_columns["advantage_T"]})
    (got,) = torch.autograd.grad(loss.sum(), log_ratio)
    fixed = clipped(log_ratio, batch_columns["advantage_T"], epsilon=0.2)
    (without,) = torch.autograd.grad(fixed.sum(), log_ratio)
    assert numbers["high"] > 0.5
    assert float(got[0]) == pytest.approx(-0.75)
    assert float(without[0]) == 0.0
