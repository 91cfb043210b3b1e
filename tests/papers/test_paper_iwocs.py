"""IWOCS: the world in which the policy is worst is solved as it stands, and the policy is best by the lowest values.

Not shown: robust MuJoCo, CMA-ES over parameters, values of networks.
"""

from pathlib import Path

import numpy as np
import pytest

from learning.control.networks.build import Networks
from learning.control.policies.policy import ControlPolicy, load_control_policy
from learning.control.reports.metrics import worst_return
from learning.control.rounds.model_sets import (
    any_of,
    choose_world,
    choose_worst_world,
    one_of,
    read_choices,
    take_lowest_values,
)
from learning.control.stepping.spaces import Spaces
from learning.control.tables.counts import read_table, write_table
from learning.control.worlds.cliffs import cliffs
from learning.control.worlds.grids import MOVES
from learning.lookup import bind
from schemas.control import NetworkSettings, WorldUse
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.control import Control
from tasks import control
from tasks.context import Context

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes/papers/iwocs.yaml")
STAGES = RECIPE.stages
WORLDS = [bind(WorldUse.model_validate(given)) for given in STAGES["nominal"].env.options["worlds"]]
WINDS = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3)]
GAMMA = 0.9


def solve_exactly(up, down, policy_S=None):
    """Best values (S, A) of the cliff in a wind at the recipe's discount; or the return of a policy, undiscounted."""
    pits, home, value = {9, 10}, 11, np.zeros((12, 4))
    for _ in range(300):
        held = np.zeros(12) if policy_S is None else value[np.arange(12), policy_S]
        best, fresh = value.max(1) if policy_S is None else held, np.zeros((12, 4))
        for state in set(range(12)) - pits - {home}:
            for action in range(4):
                moved = go(state, action)
                outcomes = [(1.0, moved)]
                if moved not in pits | {home}:
                    outcomes = [(up, go(moved, 0)), (down, go(moved, 1)), (1 - up - down, moved)]
                for chance, after in outcomes:
                    factor = 1.0 if policy_S is not None else GAMMA
                    fresh[state, action] += chance * (float(after == home) + factor * best[after])
        value = fresh
    return value if policy_S is None else value[8, policy_S[8]]


def go(state, action):
    row, column = state // 4 + MOVES[action][0], state % 4 + MOVES[action][1]
    return min(max(row, 0), 2) * 4 + min(max(column, 0), 3)


def save(folder, table, form="make_choice_values", sizes=()):
    settings = NetworkSettings(hidden_sizes=list(sizes))
    spaces = Spaces(*np.shape(table))
    actor = getattr(Networks(spaces, settings), form)()
    if not sizes:
        write_table(actor, np.array(table, float))
    folder.mkdir(parents=True)
    ControlPolicy(spaces, settings, form, actor).save(folder, {})
    return folder


@pytest.fixture
def context(tmp_path):
    def context(name, **inputs):
        made = Context(inputs, tmp_path / name, tmp_path / name / "checkpoints", seed=1)
        made.folder.mkdir()
        return made

    return context


def test_the_candidate_is_best_by_the_lowest_value(context, tmp_path):
    """Q1 = (1, .4), Q2 = (.2, .3): the lowest are (.2, .3), which choose the second; the means (.6, .35) the first."""
    step = context("lowest", first=save(tmp_path / "a", [[1, 0.4]]), second=save(tmp_path / "b", [[0.2, 0.3]]))
    metrics = take_lowest_values(step)
    table = read_table(load_control_policy(step.output("model")).actor)
    assert table[0].tolist() == pytest.approx([0.2, 0.3])
    assert metrics == {"changed": 1.0, "lowered": 1.0}
    third = context("third", first=step.output("model"), second=save(tmp_path / "c", [[0.5, 0.1]]))
    take_lowest_values(third)
    assert read_table(load_control_policy(third.output("model")).actor)[0].tolist() == pytest.approx([0.2, 0.1])


def test_others_than_tables_of_values_are_refused(context, tmp_path):
    table = save(tmp_path / "a", [[1, 0.4]])
    for n, other in enumerate(
        (save(tmp_path / "b", [[1, 0]], "make_stochastic_actor"), save(tmp_path / "c", [[1, 0]], sizes=[4]))
    ):
        with pytest.raises(StepError, match="tables"):
            take_lowest_values(context(f"step{n}", first=table, second=other))


def test_the_worst_world_is_the_one_of_the_lowest_exact_return(context, tmp_path):
    """The best policy without wind walks along the edge: exact returns of it in the three winds, and the search's."""
    values = solve_exactly(*WINDS[0])
    exact = [solve_exactly(up, down, values.argmax(1)) for up, down in WINDS]
    assert exact[0] == pytest.approx(1)
    assert np.argmin(exact) == 2
    assert exact[2] < 0.6
    start = context("start")
    choose_world(start, number=0)
    step = context("worst", policy=save(tmp_path / "policy", values), choice=start.output("result"))
    made = choose_worst_world(step, worlds=WORLDS, episodes=200)
    assert (made["chosen"], made["is_new"]) == (2, 1)
    assert made["worst_return"] == pytest.approx(exact[2], abs=0.1)
    assert read_choices(step.output("result")) == [0, 2]
    again = context("again", policy=tmp_path / "policy", choice=step.output("result"))
    assert choose_worst_world(again, worlds=WORLDS, episodes=20)["is_new"] == 0
    assert read_choices(again.output("result")) == [0, 2, 2]


def test_the_world_is_the_one_chosen_last(context):
    step = context("start")
    (step.output("result") / "choice.json").write_text('{"chosen": [0, 2]}')
    world = one_of(worlds=WORLDS, choice=step.output("result"))
    assert world.winds == WINDS[2]
    assert [made().winds for made in WORLDS] == WINDS
    with pytest.raises(StepError, match="world 2"):
        one_of(worlds=WORLDS[:2], choice=step.output("result"))
    with pytest.raises(StepError, match="choice"):
        one_of(worlds=WORLDS, choice=step.folder)


def test_the_wind_blows_after_a_move_that_did_not_end_the_episode():
    world = cliffs(up=1.0)
    world.reset(seed=0)
    assert world.step(3)[:3] == (9, 0.0, True)  # into the pit, where no wind helps
    world.reset(seed=0)
    assert world.step(0)[:3] == (0, 0.0, False)  # one cell up, and one by the wind
    world.cell = (1, 3)
    assert world.step(1)[:3] == (11, 1.0, True)


def test_a_randomised_world_is_each_of_them_in_turn_and_comes_back():
    world = any_of(worlds=WORLDS)
    seen = []
    for seed in range(30):
        world.reset(seed=seed)
        seen.append(world.world.winds)
    assert set(seen) == set(WINDS)
    world.reset(seed=3)
    assert world.world.winds == seen[3]
    with pytest.raises(StepError, match=r"worlds\.1"):
        any_of(worlds=[cliffs, lambda: cliffs(width=5)])


def test_two_rounds_reach_the_value_that_no_wind_can_lower(context, tmp_path):
    """By exact values: the nominal policy's worst return is below .6, that of the lowest of two values above .99."""
    nominal, other = solve_exactly(*WINDS[0]), solve_exactly(*WINDS[2])
    robust = np.minimum(nominal, other)
    worst = [min(solve_exactly(up, down, q.argmax(1)) for up, down in WINDS) for q in (nominal, robust)]
    assert worst[0] < 0.6
    assert worst[1] > 0.99
    returns = [solve_exactly(up, down, robust.argmax(1)) for up, down in WINDS]
    assert len(returns) == 3


def test_the_recipe_solves_the_chosen_world(context, tmp_path):
    """The recipe's training in the wind that blows down, near the exact values where the policy goes."""
    step = context("choice")
    (step.output("result") / "choice.json").write_text('{"chosen": [0, 2]}')
    settings = STAGES["rounds-1-solved"].model_dump(exclude_unset=True) | {"environment_steps": 1500}
    stage = Control.model_validate({**settings, "env": {**settings["env"], "choice": str(step.output("result"))}})
    run = context("solved")
    control.run(stage, run)
    made = read_table(load_control_policy(run.output("model")).actor)
    exact = solve_exactly(*WINDS[2])
    assert made[8].max() == pytest.approx(exact[8].max(), abs=0.08)
    assert made[8].argmax() == exact[8].argmax() == 0
    assert solve_exactly(*WINDS[2], made.argmax(1)) > 0.9


def test_the_report_shows_the_world_of_the_lowest_mean():
    assert worst_return(np.array([[1, 0.5, 0.0], [0, 0.5, 0.9], [1, 0.5, 0.9]])).tolist() == [0.5, 0.5, 0.5]
    report = STAGES["report"]
    assert [bind(use)().winds for use in (report.env, *report.other_envs)] == WINDS
    assert [use.use for use in report.metrics] == ["worst_return", "mean_return"]
    assert cliffs().pits == {(2, 1), (2, 2)}


def find_sources(step):
    """The steps that a step of the recipe reads, by the name of the input."""
    return {port.path.rpartition(".")[2]: port.steps[0] for port in RECIPE.ports(step)}


def test_a_round_reads_the_one_before_and_ends_the_loop_when_no_new_world_is_the_worst():
    assert find_sources("rounds-1-worst") == {"policy": "nominal", "choice": "start"}
    assert find_sources("rounds-1-solved") == {"choice": "rounds-1-worst"}
    assert find_sources("rounds-2-worst") == {"policy": "rounds-1-lowest", "choice": "rounds-1-worst"}
    assert find_sources("rounds-2-lowest") == {"first": "rounds-1-lowest", "second": "rounds-2-solved"}
    assert find_sources("nominal") == {"choice": "start"}
    assert STAGES["start"].function.options == {"number": 0}
    (ends,) = RECIPE.unless("rounds-2-worst")
    assert (ends.step, ends.metric, ends.op, ends.value) == ("rounds-1-worst", "is_new", "<=", 0)


def test_every_world_is_trained_in_alike():
    nominal, solved = (STAGES[name].model_dump() for name in ("nominal", "rounds-1-solved"))
    assert nominal.pop("env")["choice"] == "start"
    assert solved.pop("env")["choice"] == "worst"
    assert nominal == solved
    assert nominal["loss"] == {"use": "value_iteration", "gamma": GAMMA}
    assert nominal["environment_steps"] == 3000
    assert dict(STAGES["report"].models) == {
        "nominal": "nominal",
        "randomised": "randomised",
        "robust": "rounds.lowest",
    }
    randomised = STAGES["randomised"].model_dump()
    assert randomised.pop("environment_steps") == 3 * nominal.pop("environment_steps")
    assert randomised.pop("env")["worlds"] == STAGES["nominal"].env.options["worlds"]
    assert randomised == nominal
