"""BARFI: weights and discount of a blend follow the gradient of the world's return of the policy that is best under it.

Not shown: deep continuous control, biases of the inner algorithm. Not here: a learned reward of its own beside both.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.tables.blended_rewards import compute_value, differentiate_implicitly, solve_inner
from learning.control.tables.counts import read_table
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tests.control_worlds import keep_steps

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/barfi.yaml").stages


def make(states, actions, stage="aligned", **options):
    """The recipe's loss of a stage with other options, for a world of some states."""
    use = STAGES[stage].loss
    changed = type(use).model_validate(use.model_dump(exclude_unset=True) | options)
    torch.manual_seed(0)
    return bind(changed, "loss")(Networks(Spaces(states, actions), NetworkSettings(hidden_sizes=[])))


def draw(states=3, actions=2):
    """A random process with a heuristic, and where its episodes begin."""
    rng = np.random.default_rng(1)
    parts = (
        rng.random((states, actions)),
        rng.random((states, actions)),
        rng.dirichlet(np.ones(states), (states, actions)),
    )
    return *(torch.from_numpy(part) for part in parts), torch.from_numpy(rng.dirichlet(np.ones(states)))


def test_values_are_those_of_the_sum_of_discounted_rewards():
    reward, _, transition, start = draw()
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 2)))
    policy, value = logits.softmax(-1), torch.zeros(3, dtype=torch.float64)
    for _ in range(400):
        value = (policy * (reward + 0.9 * transition @ value)).sum(-1)
    assert compute_value(logits, reward, transition, start, 0.9).item() == pytest.approx(float(start @ value))


def test_the_outer_gradient_is_that_of_finite_differences():
    """dJ(θ*(φ))/dφ for both weights and the discount, θ* solved again for each change."""
    reward, helps, transition, start = draw()

    def inner(logits, settings):
        mixed = settings[0] * reward + settings[1] * helps
        value = compute_value(logits.view(3, 2), mixed, transition, start, settings[2].sigmoid())
        return value - 0.05 * logits.square().sum()

    def outer(logits):
        return compute_value(logits.view(3, 2), reward, transition, start, 0.95)

    def follow(settings):
        return outer(solve_inner(inner, torch.zeros(6, dtype=torch.float64), settings, 500)).item()

    settings = torch.tensor([0.7, 1.2, 1.5], dtype=torch.float64)
    logits = solve_inner(inner, torch.zeros(6, dtype=torch.float64), settings, 500)
    made = differentiate_implicitly(inner, outer, logits, settings)
    for place in range(3):
        change = torch.zeros(3, dtype=torch.float64)
        change[place] = 1e-4
        expected = (follow(settings + change) - follow(settings - change)) / 2e-4
        assert made[place].item() == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert abs(expected) > 1e-4


ARMS = [(0, 0, 1.0, 0, True), (0, 1, 0.6, 0, True)] * 5
"""Two arms: the first pays 1, the second .6."""


@pytest.mark.parametrize(("values", "rises"), [([0, 1], False), ([1, 0], True)])
def test_a_misleading_weight_falls_and_a_helpful_one_rises(values, rises):
    """Weights begin at 1; five outer steps. The heuristic pays 1 for the wrong arm, or for the right one."""
    heuristic = {"use": "for_actions", "values": values}
    algorithm = make(1, 2, heuristic=heuristic, outer_steps=5, ridge=0.05)
    made = algorithm.fit(keep_steps(ARMS, 1), None)
    assert (made["weight_heuristic"] > 1) == rises
    assert abs(made["weight_heuristic"] - 1) > 0.01
    assert made["weight_primary"] > 1
    assert algorithm.loss.state_dict()["settings"][:2].tolist() == [made["weight_primary"], made["weight_heuristic"]]


def test_the_plain_sum_picks_the_wrong_arm_and_the_blend_the_right_one():
    """Sum: 1 against 1.6. The regularised best logits are ± x with x = π(1 − π) · gap / ridge."""
    heuristic = {"use": "for_actions", "values": [0, 1]}
    plain = make(1, 2, "sum", heuristic=heuristic, ridge=0.05)
    made = plain.fit(keep_steps(ARMS, 1), None)
    logits = read_table(plain.actor)[0]
    assert logits.argmax() == 1
    right = 1 / (1 + np.exp(logits[1] - logits[0]))
    assert logits[0] == pytest.approx(right * (1 - right) * (1.0 - 1.6) / 0.05, rel=1e-4)
    assert (made["weight_primary"], made["weight_heuristic"]) == (1, 1)
    assert made["world_return"] == pytest.approx(right + 0.6 * (1 - right), rel=1e-6)
    aligned = make(1, 2, heuristic=heuristic, ridge=0.05, outer_steps=20)
    aligned.fit(keep_steps(ARMS, 1), None)
    assert read_table(aligned.actor)[0].argmax() == 0


def test_the_discount_is_learned_unless_it_is_to_stay():
    """State 0: .3 now and the end, or nothing now and 1 after it: a larger discount sees the 1."""
    rows = [(0, 0, 0.3, 0, True), (0, 1, 0.0, 1, False), (1, 0, 1.0, 1, True), (1, 1, 1.0, 1, True)] * 3
    none = {"use": "for_actions", "values": [0, 0]}
    learned = make(2, 2, heuristic=none, discount=0.3, outer_steps=5).fit(keep_steps(rows, 2), None)
    kept = make(2, 2, heuristic=none, discount=0.3, outer_steps=5, learns_discount=False).fit(keep_steps(rows, 2), None)
    assert learned["discount"] > 0.31
    assert kept["discount"] == pytest.approx(0.3)
    assert learned["world_return"] > kept["world_return"]


def test_what_was_never_done_has_no_heuristic_reward():
    """The heuristic pays for the second action, which no kept step shows: its logit is that of a reward of 0."""
    heuristic = {"use": "for_actions", "values": [0, 5]}
    algorithm = make(1, 2, "sum", heuristic=heuristic, ridge=0.05)
    algorithm.fit(keep_steps(ARMS[:1], 1), None)
    assert read_table(algorithm.actor)[0].argmax() == 0


def test_a_heuristic_of_another_shape_is_refused():
    short = {"use": "for_actions", "values": [1.0]}
    with pytest.raises(StepError, match="1 values"):
        make(1, 2, heuristic=short).fit(keep_steps(ARMS, 1), None)


def test_the_arms_differ_in_the_outer_steps_and_the_pairs_in_the_heuristic():
    losses = {name: STAGES[name].model_dump()["loss"] for name in ("aligned", "sum", "helped", "helped_sum")}
    assert {name: loss.pop("outer_steps") for name, loss in losses.items()} == {
        "aligned": 2,
        "sum": 0,
        "helped": 2,
        "helped_sum": 0,
    }
    assert losses["aligned"] == losses["sum"]
    assert losses["helped"] == losses["helped_sum"]
    assert losses["aligned"].pop("heuristic")["values"] == [0.3, 0, 0, 0]
    assert losses["helped"].pop("heuristic")["values"] == [0, 0, 0, 0.3]
    assert losses["aligned"] == losses["helped"]
    assert {STAGES[name].environment_steps for name in losses} == {600}
    assert dict(STAGES["report"].models) == {name: name for name in losses}
