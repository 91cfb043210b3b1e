"""HPO for multi-objective RL: a trial is a set of policies, scored by its hypervolume, as a mean over three seeds.

Not shown: a gain over tuning by hand, MO-Gymnasium's worlds, fronts by networks.
"""

import json
from itertools import product
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from learning.control.reports.fronts import compute_hypervolume
from learning.control.reports.metrics import best_weighted_sum, hypervolume
from learning.control.stepping.worlds import Worlds
from learning.control.worlds.objectives import treasure, weighted
from learning.lookup import bind
from schemas.control import WorldUse
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from tasks import search
from tasks.context import Context
from tasks.search_trials import Trials

PATH = Path(__file__).parents[2] / "recipes/papers/morl-hpo.yaml"
STAGES = load_recipe(PATH).stages
UP, DOWN, LEFT, RIGHT = range(4)
FRONT = [(1, 3), (2, 2), (3, 1)]


def test_the_hypervolume_of_a_front_is_the_area_below_it():
    assert compute_hypervolume(np.array(FRONT), (0, 0)) == 6
    assert compute_hypervolume(np.array([*FRONT, (1, 1), (4, 0), (-1, 9)]), (0, 0)) == 6
    assert compute_hypervolume(np.array(FRONT), (1, 0)) == 3
    assert compute_hypervolume(np.array([(0, 5)]), (0, 0)) == 0
    assert compute_hypervolume(np.zeros((0, 2)), (0, 0)) == 0


def test_it_agrees_with_counted_cells_in_three_objectives():
    point_MK = np.random.default_rng(0).integers(0, 6, size=(7, 3))
    cells = sum(any((np.array(cell) < point).all() for point in point_MK) for cell in product(range(6), repeat=3))
    assert compute_hypervolume(point_MK, (0, 0, 0)) == cells


def test_environments_are_policies_with_their_objectives_in_turn():
    score_PN = np.array([[1, 3, 2, 2, 3, 1], [2.2, 2.2, 0, 0, 0, 0]])
    assert hypervolume(score_PN, reference=[0.0, 0.0]) == pytest.approx([6, 4.84])
    assert best_weighted_sum(score_PN, weights=[1.0, 1.0]) == pytest.approx([4, 4.4])
    assert best_weighted_sum(score_PN, weights=[1.0, 0.0]) == pytest.approx([3, 2.2])
    with pytest.raises(StepError, match="no whole policies of 2"):
        hypervolume(score_PN[:, :5], reference=[0.0, 0.0])


TRIALS = [[(2.2, 2.2)] * 5, [*FRONT, FRONT[0], FRONT[0]]]
"""Trial A has one point of which all policies are, trial B a front with a lower best sum."""


@pytest.mark.parametrize(("name", "chosen", "value"), [("tuned", 1, 6), ("scalarised", 0, 4.4)])
def test_a_set_is_scored_as_a_whole_where_a_sum_picks_another(name, chosen, value, tmp_path, monkeypatch):
    """The recipe's searches on a stored table: A has volume 4.84 and sum 4.4, B 6 and 4, both above the reference."""
    stage = STAGES[name].model_copy(update={"trials": 2})
    shift = np.array([0.0, -20.0])
    seeds, played = [], []
    luck = {"tuned": 3.0, "scalarised": -3.0}[name]  # of trial A with the first seed, against the two others

    def run_part(self, part, changed, folder, inputs):
        if part == "trained":
            seeds.append(changed.seed)
            (folder / "outputs/model").mkdir(parents=True)
            number = -1 if "baseline" in str(folder) else len(seeds[3:-1]) // 3
            (folder / "outputs/model/trial").write_text(f"{number} {changed.seed}")
            return
        number, seed = map(int, (next(iter(inputs.values())) / "trial").read_text().split())
        points = np.zeros((5, 2)) if number < 0 else np.array(TRIALS[min(number, 1)])
        played.append(changed)
        table = []
        for use in changed.metrics:
            worth = bind(use).ask(0, {"score_PN": (points + shift).reshape(1, -1)})[0]
            worth += 20 if use.use == "best_weighted_sum" else 0
            worth += {1: luck, 2: -luck / 2, 3: -luck / 2}.get(seed, 0) if number == 0 else 0
            metric = {"hypervolume": "hypervolume_[0.0, -20.0]"}.get(use.use, f"{use.use}_[1.0, 1.0]")
            table.append({"model": "policy", "metric": metric, "family": "all", "value": float(worth)})
        (folder / "outputs/report").mkdir(parents=True)
        (folder / "outputs/report/results.json").write_text(json.dumps({"table": table}))

    monkeypatch.setattr(Trials, "_run_part", run_part)
    step = Context({}, tmp_path / "step", tmp_path / "step/checkpoints", seed=1)
    step.folder.mkdir()
    made = search.run(stage, step)
    record = made.details["search"]
    assert record["best"] == chosen
    assert made.metrics["chosen_by"] == pytest.approx(value)
    assert seeds[:9] == [1, 2, 3] * 3
    assert set(seeds[9:]) == {101, 102, 103}
    assert [len(use.other_envs) for use in played] == [9] * len(played)


def play(world, *actions, seed=0):
    """What a world shows and pays for actions."""
    shown = [world.reset(seed=seed)[0]]
    paid, ended = [], []
    for action in actions:
        observation, reward, *ended, _ = world.step(action)
        shown.append(observation)
        paid.append(reward)
    return shown, paid, ended


def test_treasures_end_the_dive_and_time_costs():
    _, paid, ended = play(treasure(), DOWN)
    assert [list(reward) for reward in paid] == [[1, -1]]
    assert ended == [True, False]
    shown, paid, ended = play(treasure(), LEFT, RIGHT, RIGHT, RIGHT, DOWN, DOWN, DOWN)
    assert shown == [0, 0, 1, 2, 3, 7, 11, 15]
    assert np.sum(paid, 0).tolist() == [8, -7]
    assert ended == [True, False]
    shown, *_ = play(treasure(floor=[1, 3], worth=[1.0, 2.0]), RIGHT, DOWN, DOWN, LEFT)
    assert shown == [0, 1, 3, 5, 5]  # the ground below the first treasure
    assert play(treasure(limit=2), UP, UP)[2] == [False, True]
    with pytest.raises(StepError, match="4 columns have a floor, and 1 a worth"):
        treasure(worth=[1.0])


def test_a_policy_for_each_weight_earns_its_sum_and_every_objective_can_be_looked_at():
    """The recipe's worlds: what number 2's policy sees is shifted by two seas, and it earns half of each objective."""
    given = STAGES["validation"]
    makes = [bind(WorldUse.model_validate(use.model_dump())) for use in (given.env, *given.other_envs)]
    paths = [play(make(), RIGHT, DOWN, DOWN) for make in makes]
    assert [shown[0] for shown, *_ in paths] == [16 * (i // 2) for i in range(10)]
    assert [sum(paid) for _, paid, _ in paths] == [2.0, -3.0] * 5
    score_PN = np.array([[sum(paid) for _, paid, _ in paths]])
    reference = next(use for use in given.metrics if use.use == "hypervolume")
    assert bind(reference).ask(0, {"score_PN": score_PN}).tolist() == [2 * 17]
    trained = bind(STAGES["policy"].env)()
    drawn = {play(trained, RIGHT, DOWN, DOWN, seed=seed)[0][0] for seed in range(40)}
    assert drawn == {0, 16, 32, 48, 64}
    seeds = {
        16 * number: next(s for s in range(40) if play(trained, seed=s)[0][0] == 16 * number) for number in range(5)
    }
    earned = [sum(play(trained, RIGHT, DOWN, DOWN, seed=seed)[1]) for seed in seeds.values()]
    assert earned == pytest.approx([2, 0.75 * 2 - 0.25 * 3, -0.5, 0.25 * 2 - 0.75 * 3, -3])


def test_the_hypervolume_of_the_best_set_is_that_of_all_treasures():
    """The sea's true front: 1 after 1 step, 2 after 3, 5 after 5, 8 after 6 — the last two beat all between."""
    best = [(1, -1), (2, -3), (5, -5), (8, -6)]
    reference = STAGES["validation"].metrics[0].options["reference"]
    assert compute_hypervolume(np.array(best), reference) == 1 * 19 + 1 * 17 + 3 * 15 + 3 * 14
    steps = Worlds(bind(STAGES["policy"].env), 2, 1, "control").step(np.array([DOWN, DOWN]))
    assert steps.terminated.all()


class Point(gymnasium.Env):
    """Shows two numbers."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.array([0.5, 0.25], np.float32), {}


def test_observations_that_are_numbers_are_followed_by_the_weights():
    world = weighted(world=Point, weights=[[0.25, 0.75]])
    assert world.reset(seed=0)[0].tolist() == [0.5, 0.25, 0.25, 0.75]
    assert world.observation_space.shape == (4,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [[1.0], [1.0, 2.0]]}, "rows of a number"),
        ({"weights": []}, "rows of a number"),
        ({"weights": [[1.0, 0.0]], "weight": 1}, "no weight 1, the last is 0"),
        ({"weights": [[1.0, 0.0]], "objective": 2}, "no objective 2, the last is 1"),
    ],
)
def test_weights_that_fit_no_objectives_are_refused(options, message):
    with pytest.raises(StepError, match=message):
        weighted(world=treasure, **options)


def test_a_reward_of_another_number_of_objectives_is_refused():
    world = weighted(world=treasure, weights=[[1.0, 0.0, 0.0]])
    world.reset(seed=0)
    with pytest.raises(StepError, match="not a reward of 3 objectives"):
        world.step(DOWN)


def test_both_searches_make_as_many_trials_of_the_same_space():
    tuned, scalarised = (STAGES[name].model_dump() for name in ("tuned", "scalarised"))
    assert (tuned.pop("metric"), scalarised.pop("metric")) == ("hypervolume", "best_weighted_sum")
    assert tuned == scalarised
    assert (tuned["trials"], tuned["sampler"]["use"], len(tuned["seeds"])) == (6, "random", 3)
    assert not set(tuned["seeds"]) & set(tuned["test_seeds"])
    assert dict(STAGES["report"].models) == {"policy": "policy", "scalarised": "scalarised", "tuned": "tuned"}
