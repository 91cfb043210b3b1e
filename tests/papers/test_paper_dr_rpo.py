"""DR-RPO: the worst transitions within a radius, a bonus of rare features, and a policy near its reference.

Not shown: regret bounds; features that are not one-hot.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.tables.counts import read_table, write_table
from learning.control.tables.planning import find_worst
from learning.control.worlds.tabular import (
    EDGE,
    Process,
    draw_gambles,
    draw_process,
    evaluate,
    finite,
    solve,
    solve_near,
)
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tests.control_worlds import keep_steps

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/dr-rpo.yaml").stages


def make(states, actions, **options):
    """The recipe's robust loss with other options, for a world of some states."""
    use = STAGES["robust"].loss
    changed = type(use).model_validate(use.model_dump(exclude_unset=True) | options)
    torch.manual_seed(0)
    return bind(changed, "loss")(Networks(Spaces(states, actions), NetworkSettings(hidden_sizes=[])))


@pytest.mark.parametrize(
    ("radius", "chances", "expected"),
    [(0.2, [0.5, 0.5], 0.3), (0.0, [0.5, 0.5], 0.5), (0.7, [0.5, 0.5], 0.0), (0.2, [0.9, 0.1], 0.0)],
)
def test_the_worst_mean_takes_the_radius_from_the_highest_values(radius, chances, expected):
    worst = find_worst(np.array([[chances]]), np.array([0.0, 1.0]), radius)
    assert worst[0, 0] == pytest.approx(expected, abs=1e-12)


def test_the_worst_mean_is_that_of_the_dual_and_of_the_best_of_many_distributions():
    """max over α of E[min(V, α)] − radius · α, the dual with smallest value 0; and no distribution near is worse."""
    rng = np.random.default_rng(0)
    chances, values, radius = rng.dirichlet(np.ones(4)), np.array([0.0, 0.7, 2.0, 1.1]), 0.15
    dual = max((np.minimum(values, a) @ chances) - radius * a for a in np.linspace(0, 2, 4001))
    worst = find_worst(chances[None, None], values, radius)[0, 0]
    assert worst == pytest.approx(dual, abs=1e-3)
    others = rng.dirichlet(np.ones(4), size=20000)
    near = np.abs(others - chances).sum(1) / 2 <= radius
    assert near.sum() > 50
    assert (others[near] @ values).min() >= worst - 1e-9


def test_the_policy_is_the_reference_times_exp_of_the_values():
    """π_ref (.8, .2), Q = (0, 1), η = 1: (.595, .405). Many visits, no bonus."""
    algorithm = make(1, 2, horizon=1, radius=0.0, step_size=1.0, bonus=0.0, ridge=1e-9)
    write_table(algorithm.actor, np.log([[0.8, 0.2]]))
    kept = keep_steps([(0, 0, 0.0, 0, True), (0, 1, 1.0, 0, True)], 1)
    for _ in range(2):  # the reference stays that of the start
        algorithm.fit(kept, None)
        probability = torch.from_numpy(read_table(algorithm.actor)).softmax(-1)
        assert probability[0].tolist() == pytest.approx([0.5954, 0.4046], abs=1e-4)


def test_rewards_shrink_by_the_ridge_and_the_bonus_falls_with_visits():
    """Ridge 1: three visits of reward .6 give (3 · .6) / 4 and the bonus β / 2; none gives 0 and β."""
    algorithm = make(1, 2, horizon=1, radius=0.0, step_size=1.0, bonus=0.5, ridge=1.0)
    write_table(algorithm.actor, np.zeros((1, 2)))
    algorithm.fit(keep_steps([(0, 0, 0.6, 0, True)] * 3, 1), None)
    logits = read_table(algorithm.actor)[0] - math.log(0.5)
    assert logits.tolist() == pytest.approx([0.45 + 0.25, 0.5], abs=1e-6)


def test_without_radius_and_bonus_it_has_the_exact_policy_near_its_reference():
    """Against `solve_near`, whose values are regularised by KL / η, on many counts of every transition."""
    process = draw_process(4, 2, 3, 0)
    rows, rng = [], np.random.default_rng(1)
    chances = np.round(process.transition_SAS * 600).astype(int)
    for step in range(3):
        for (state, action, after), count in np.ndenumerate(chances):
            row = (step * 4 + state, action, process.reward_SA[state, action], min(step + 1, 2) * 4 + after, step == 2)
            rows += [row] * count
    reference = rng.dirichlet(np.ones(2), size=(3, 4))
    algorithm = make(12, 2, horizon=3, radius=0.0, step_size=5.0, bonus=0.0, ridge=1e-9)
    write_table(algorithm.actor, np.log(reference).reshape(12, 2))
    algorithm.fit(keep_steps(rows, 12), None)
    _, expected = solve_near(process, reference, 1 / 5.0)
    made = torch.from_numpy(read_table(algorithm.actor)).softmax(-1).numpy()
    assert made == pytest.approx(expected.reshape(12, 2), abs=0.01)


def test_robust_values_are_lower_and_prefer_what_is_sure():
    """Action 0 surely keeps .5 of a last reward; action 1 reaches 1 or .1. Without radius 1 is better, with .2 not."""
    rows = [(0, 0, 0.0, 1, False)] * 100 + [(0, 1, 0.0, 2, False)] * 50 + [(0, 1, 0.0, 3, False)] * 50
    rows += [(1, 0, 0.5, 1, True), (2, 0, 1.0, 2, True), (3, 0, 0.1, 3, True)] * 1000
    rows += [(1, 1, 0.5, 1, True), (2, 1, 1.0, 2, True), (3, 1, 0.1, 3, True)] * 1000
    choices = []
    for radius in (0.0, 0.2):
        algorithm = make(4, 2, horizon=2, radius=radius, step_size=50.0, bonus=0.0, ridge=1e-9)
        write_table(algorithm.actor, np.zeros((4, 2)))
        algorithm.fit(keep_steps(rows, 4), None)
        logits = (read_table(algorithm.actor)[0] - math.log(0.5)) / 50
        choices.append(logits.argmax())
        expected = [0.5 * (1 - radius), (0.5 - radius) * 1 + 0.5 * 0.1]
        assert logits.tolist() == pytest.approx(expected, abs=1e-4)
    assert choices == [1, 0]


def test_the_perturbed_world_sends_a_fifth_of_all_transitions_to_the_worst_state():
    plain, other = (finite(**STAGES[name].env.options).process for name in ("report", "report_perturbed"))
    worst = solve(plain)[0].max(1).argmin()
    moved = other.transition_SAS - plain.transition_SAS
    assert np.abs(moved).sum(-1) / 2 == pytest.approx(0.2 * (1 - plain.transition_SAS[..., worst]))
    assert (np.delete(moved, worst, -1) <= 0).all()
    assert isinstance(other, Process)
    assert (other.reward_SA == plain.reward_SA).all()


def test_gambles_pay_more_on_average_and_lose_more_where_luck_turns():
    """A sure way to a pay m, and a gamble for 1 with chance m + .08, which is .2 less where luck turns."""
    options = {"states": 4, "horizon": 2, "number": 1}
    plain = finite(**options, kind="gambles").process
    turned = finite(**options, kind="gambles", shift=0.2, shifted="luck").process
    pay = plain.reward_SA[:, 0]
    assert (pay[0], pay[3]) == (0, 1)
    assert ((pay[1:3] > 0.3) & (pay[1:3] < 0.6)).all()
    assert (plain.reward_SA == pay[:, None]).all()
    [sure] = {int(row.argmax()) for row in plain.transition_SAS[:, 0]}
    assert sure in {1, 2}
    assert pytest.approx(0.08) == EDGE
    for process, chance in ((plain, pay[sure] + 0.08), (turned, pay[sure] - 0.12)):
        assert (process.transition_SAS[:, 0, sure] == 1).all()
        assert process.transition_SAS[:, 1].tolist() == [[pytest.approx(1 - chance), 0, 0, pytest.approx(chance)]] * 4
        for policy, expected in (([1, 0], pay[sure]), ([0, 1], chance)):
            made = evaluate(process, np.full((2, 4, 2), policy)).mean()
            assert made == pytest.approx(pay.mean() + expected)
    with pytest.raises(StepError, match="2 actions"):
        finite(actions=3, kind="gambles")


def test_robust_plans_are_sure_where_plain_ones_gamble():
    process = draw_gambles(4, 3, 11)
    rows = []
    for step in range(3):
        for (state, action, after), chance in np.ndenumerate(process.transition_SAS):
            row = (step * 4 + state, action, process.reward_SA[state, action], min(step + 1, 2) * 4 + after, step == 2)
            rows += [row] * round(600 * chance)
    for radius, gambles in ((0.0, True), (0.3, False)):
        algorithm = make(12, 2, horizon=3, radius=radius, step_size=50.0, bonus=0.0, ridge=1e-9)
        write_table(algorithm.actor, np.zeros((12, 2)))
        algorithm.fit(keep_steps(rows, 12), None)
        assert (read_table(algorithm.actor)[:8].argmax(1) == int(gambles)).all()


def test_the_arms_differ_in_the_radius_alone():
    robust, plain = STAGES["robust"].model_dump(), STAGES["plain"].model_dump()
    assert (robust["loss"].pop("radius"), plain["loss"].pop("radius")) == (0.2, 0.0)
    assert robust == plain
    assert (robust["model"], robust["environment_steps"]) == ("reference", 900)
    assert robust["loss"] == {"use": "dr_rpo", "horizon": 3, "step_size": 5.0, "bonus": 0.5}
    assert STAGES["reference"].data == ["demonstrations"]
    for name in ("report", "report_perturbed"):
        assert dict(STAGES[name].models) == {n: n for n in ("reference", "plain", "robust")}
