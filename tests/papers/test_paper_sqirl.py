"""SQIRL: each step is decided once, by values of random acting that few backups bring to it.

Not shown: BRIDGE and Atari, the bound on the number of samples.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.stepping.transitions import gather_episodes, write_transitions
from learning.control.stepping.worlds import Worlds
from learning.control.tables.counts import read_table
from learning.control.tables.random_rollouts import find_lookahead, measure_lookahead
from learning.control.training import ControlLoop
from learning.control.worlds.cliffs import branches
from learning.control.worlds.tabular import draw_process, finite, solve
from learning.lookup import bind
from schemas.control import NetworkSettings
from schemas.errors import StepError
from schemas.recipe.load import load_recipe
from schemas.stages.control import Control
from tasks.context import Context
from tests.control_worlds import keep_steps

STAGES = load_recipe(Path(__file__).parents[2] / "recipes/papers/sqirl.yaml").stages


def make(states, actions, stage, **options):
    """The recipe's loss of a stage with other options, for a world of some states."""
    use = STAGES[stage].loss
    changed = type(use).model_validate(use.model_dump(exclude_unset=True) | options)
    torch.manual_seed(0)
    return bind(changed, "loss")(Networks(Spaces(states, actions), NetworkSettings(hidden_sizes=[])))


LEAVES = ((0.6, 0.6), (1.0, 0.0))
EVERY = [
    row
    for first in (0, 1)
    for second in (0, 1)
    for row in ((0, first, 0.0, 1 + first, False), (1 + first, second, LEAVES[first][second], 1 + first, True))
]
"""All four episodes of the tree: left leads to .6 and .6, right to 1 and 0."""


@pytest.mark.parametrize(("stage", "first"), [("shallow", 0), ("deep", 1)])
def test_one_backup_sees_what_random_acting_hides(stage, first):
    """Random acting is worth .6 on the left and .5 on the right; the best leaves are worth .6 and 1."""
    algorithm = make(3, 2, stage, episodes=4)
    assert algorithm.fit(keep_steps(EVERY[:6], 3), None) == {}
    made = algorithm.fit(keep_steps(EVERY, 3), None)
    table = read_table(algorithm.actor)
    assert table[0].argmax() == first
    assert table[0].max() >= 50  # float32's softmax gives all others 0
    assert (table[1:] == 0).all()
    assert made == {"decided_steps": 1, "decided_states": 1}
    algorithm.fit(keep_steps(EVERY * 2, 3), None)
    assert read_table(algorithm.actor).argmax(1).tolist() == [first, 0, 0]
    assert (read_table(algorithm.actor).max(1) >= 50).all()


def test_only_the_newest_episodes_count_and_what_is_decided_stays():
    algorithm = make(3, 2, "deep", episodes=4)
    algorithm.fit(keep_steps(EVERY, 3), None)
    before = read_table(algorithm.actor)[0].copy()
    worse = [(s, a, 1 - r if end else r, n, end) for s, a, r, n, end in EVERY]
    algorithm.fit(keep_steps(EVERY + worse, 3), None)
    table = read_table(algorithm.actor)
    assert (table[0] == before).all()
    assert table[2].argmax() == 1  # of the leaves 1 and 0, which the newest episodes exchange


def test_each_value_is_a_mean_over_the_chances_of_the_world():
    """Backups average over next states: a branch that slips to the other one is worth the mean of both."""
    rows = [(0, 0, 0.0, 1, False), (1, 0, 1.0, 1, True)] * 3 + [(0, 0, 0.0, 2, False), (2, 0, 0.2, 2, True)]
    rows += [(0, 1, 0.0, 2, False), (2, 1, 0.7, 2, True)] * 4
    shallow, deep = make(3, 2, "shallow", episodes=8), make(3, 2, "deep", episodes=8)
    for algorithm in (shallow, deep):
        algorithm.fit(keep_steps(rows, 3), None)
    assert read_table(shallow.actor)[0].argmax() == 0  # (3 · 1 + .2) / 4 = .8 against .7
    assert read_table(deep.actor)[0].argmax() == 0  # (3 · 1 + .7) / 4 = .925 against .7
    rows[1::2] = [(s, a, 0.75 * r if s == 1 else r, n, end) for s, a, r, n, end in rows[1::2]]
    for algorithm in (one := make(3, 2, "shallow", episodes=8), two := make(3, 2, "deep", episodes=8)):
        algorithm.fit(keep_steps(rows, 3), None)
    assert read_table(one.actor)[0].argmax() == 1  # (3 · .75 + .2) / 4 = .6125 against .7
    assert read_table(two.actor)[0].argmax() == 0  # (3 · .75 + .7) / 4 = .7375 against .7


def test_steps_before_are_greedy_and_later_ones_random(tmp_path):
    """The recipe's stage in the tree: after 10 episodes the first action is fixed, after 20 the second, too."""
    settings = STAGES["deep"].model_dump(exclude_unset=True)
    settings |= {"env": "learning.control.worlds.cliffs:branches", "environment_steps": 60}
    settings["loss"] = {**settings["loss"], "episodes": 10}
    stage = Control.model_validate(settings)
    context = Context({}, tmp_path, tmp_path / "checkpoints", seed=0)
    worlds, spaces = Worlds(branches, 1, 0, "control"), Spaces(3, 2)
    torch.manual_seed(0)
    loop = ControlLoop(
        stage=stage,
        algorithm=make(3, 2, "deep", episodes=10),
        make=branches,
        spaces=spaces,
        worlds=worlds,
        data=None,
        terms={},
        exploration=None,
        reporter=context,
        checkpoints=context.checkpoints,
        seed=0,
    )
    loop.run()
    kept = loop.buffer.save()
    first, second = kept["action"].numpy().reshape(30, 2).T
    assert set(first[:10]) == {0, 1}
    assert set(first[10:]) == {1}
    assert set(second[:20]) == {0, 1}
    assert set(second[20:]) == {0}


def test_what_cannot_be_decided_is_refused():
    twice = [(0, 0, 0.0, 0, False), (0, 0, 1.0, 0, True)]
    with pytest.raises(StepError, match="several steps"):
        make(1, 2, "shallow", episodes=1).fit(keep_steps(twice, 1), None)
    mixed = [EVERY[0], EVERY[4], EVERY[1], EVERY[5]]
    with pytest.raises(StepError, match="num_envs: 1"):
        make(3, 2, "shallow", episodes=1).fit(keep_steps(mixed, 3), None)


def test_the_lookahead_of_a_tree_is_two_and_of_one_that_random_acting_ranks_right_one():
    transition = np.zeros((3, 2, 3))
    transition[0, 0, 1] = transition[0, 1, 2] = 1
    for leaves, expected in ((LEAVES, 2), (((0.4, 0.6), (1.0, 0.2)), 1)):
        reward = np.array([[0, 0], *leaves])
        random = reward + transition @ np.array([0, *np.mean(leaves, 1)])
        best = reward + transition @ np.array([0, *np.max(leaves, 1)])
        assert find_lookahead(random, best, reward, transition, 2) == expected


def test_the_measure_counts_random_steps(tmp_path):
    """In the recipe's world: values of the counted model near the exact ones."""
    env = STAGES["random"].env.options
    worlds, rng = Worlds(lambda: finite(**env), 1, 3, "collect"), np.random.default_rng(0)
    steps = [worlds.step(rng.integers(2, size=1)) for _ in range(4000)]
    (tmp_path / "data").mkdir()
    write_transitions(tmp_path / "data", gather_episodes(steps, worlds.spaces))
    context = Context({"transitions": tmp_path / "data"}, tmp_path / "step", tmp_path / "checkpoints", seed=0)
    context.folder.mkdir()
    options = STAGES["measured"].function.options
    made = measure_lookahead(context, **options)
    process = draw_process(env["states"], env["actions"], env["horizon"], 0)
    values = solve(process).max(-1)
    assert made["best_value"] == pytest.approx(values.mean(), rel=0.05)
    value, means = np.zeros(6), []
    for _ in range(5):
        value = (process.reward_SA + process.transition_SAS @ value).mean(1)
        means.append(value.mean())
    assert made["random_value"] == pytest.approx(np.mean(means), rel=0.05)
    assert 1 <= made["lookahead"] <= 5


def test_the_arms_take_as_many_steps_and_differ_in_the_lookahead():
    shallow, deep, ppo = (STAGES[name].model_dump() for name in ("shallow", "deep", "ppo"))
    assert (shallow["loss"].pop("lookahead"), deep["loss"].pop("lookahead")) == (1, 2)
    assert shallow == deep
    assert shallow["loss"] == {"use": "sqirl", "episodes": 40}
    assert {one["environment_steps"] for one in (shallow, deep, ppo)} == {1000}
    assert 40 * 5 * 5 == 1000  # episodes for each of five steps, of five steps each
    assert STAGES["random"].policy.use == "random"
    assert dict(STAGES["report"].models) == {name: name for name in ("ppo", "shallow", "deep")}
