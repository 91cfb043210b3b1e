"""RLIF: the step into an intervention earns −1, nothing else is a reward, and the expert's actions are kept.

Not shown: people, robots, and the bounds for suboptimal interventions.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.control import training
from learning.control.policies.relabelling import find_onsets
from learning.control.stepping.transitions import read_transitions, write_transitions
from learning.lookup import bind
from schemas.recipe.load import load_recipe
from tasks import collect, control, python
from tasks.context import Context

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "rlif.yaml"
STAGES = load_recipe(RECIPE).stages
SHORT = {"environment_steps": 120, "learning_starts": 40, "batch_size": 64}


def show(heights):
    """Observations of the pendulum with these heights."""
    return np.array([[height, 0.5, 0.0] for height in heights], np.float32)


def test_the_steps_into_each_onset_earn_minus_one():
    """Interventions at (0, 0, 1, 1, 0, 1): the steps from 1 to 2 and from 4 to 5 lead into one."""
    heights = [0.5, 0.4, -0.1, -0.2, 0.3, -0.4, -0.5]
    observation_NO, next_NO = show(heights[:-1]), show(heights[1:])
    relabel = bind(STAGES["rlif"].relabel, "relabel")
    columns = relabel.ask(0, {"observation_NO": observation_NO, "next_observation_NO": next_NO})
    assert set(columns) == {"reward"}
    assert columns["reward"].tolist() == [0, -1, 0, 0, -1, 0]
    flags = np.array([0, 0, 1, 1, 0, 1], bool)
    assert find_onsets(flags[:-1], flags[1:]).tolist() == [False, True, False, False, True]


def test_the_expert_acts_below_the_horizon_and_the_policy_above():
    exploration = bind(STAGES["rlif"].exploration, "exploration")
    own_NA, spaces = np.full((4, 1), 0.123, np.float32), make_spaces()
    shown = show([0.9, -0.9, 0.1, -0.1])
    taken = exploration.ask(0, {"action_N": own_NA, "observation_NO": shown, "spaces": spaces})
    expert = bind(STAGES["demonstrations"].policy, "policy").ask(0, {"observation_NO": shown, "spaces": spaces})
    assert taken[[0, 2]].tolist() == own_NA[[0, 2]].tolist()
    assert taken[[1, 3]].tolist() == expert[[1, 3]].tolist()
    assert not np.isclose(expert, 0.123).any()


def make_spaces():
    from learning.control.stepping.spaces import Spaces

    return Spaces(3, 1, (-2.0,), (2.0,), (1,))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """The demonstrations, and what their labelling makes of them."""
    folder = tmp_path_factory.mktemp("rlif")
    given = Context({}, folder / "a", folder / "a/c", seed=1)
    given.folder.mkdir()
    collect.run(STAGES["demonstrations"], given)
    transitions = folder / "a/outputs/transitions"
    made = Context({"inputs.transitions": transitions}, folder / "b", folder / "b/c", seed=1)
    made.folder.mkdir()
    result = python.run(STAGES["labelled"], made)
    return transitions, folder / "b/outputs/transitions", result.metrics


def test_demonstrations_get_the_same_reward_and_keep_the_rest(labelled):
    before, after, metrics = labelled
    given, made = read_transitions(before), read_transitions(after)
    low, then = given.observation[:, 0] < 0, given.next_observation[:, 0] < 0
    assert made.reward.tolist() == (-(then & ~low).astype(float)).tolist()
    assert metrics == {"steps": 600, "onsets": float((then & ~low).sum())}
    assert np.array_equal(made.action, given.action)
    assert np.array_equal(made.next_observation, given.next_observation)


def train(name, folder, data, monkeypatch, reward=None, watch=None):
    """Train a short arm; return the bytes of its networks. `reward` replaces that of the world."""
    stage = STAGES[name].model_copy(update=SHORT)
    folder.mkdir()
    step = training.Worlds.step

    def pay(self, action):
        steps = step(self, action)
        return steps if reward is None else replace(steps, reward=np.full_like(steps.reward, reward))

    monkeypatch.setattr(training.Worlds, "step", pay)
    if watch is not None:
        add = training.Buffer.add
        monkeypatch.setattr(training.Buffer, "add", lambda self, steps: (watch.append(steps), add(self, steps))[1])
    control.run(stage, Context({"data.0": data}, folder, folder / "c", seed=1))
    monkeypatch.setattr(training.Worlds, "step", step)
    return (folder / "outputs/model/networks.safetensors").read_bytes()


def test_no_reward_of_the_world_reaches_the_training(labelled, tmp_path, monkeypatch):
    """Neither that of the world nor that of the demonstrations, here a million, changes a bit."""
    plain = train("rlif", tmp_path / "plain", labelled[1], monkeypatch)
    paid = train("rlif", tmp_path / "paid", labelled[1], monkeypatch, reward=1e6)
    assert plain == paid
    (tmp_path / "rich").mkdir()
    given = read_transitions(labelled[0])
    write_transitions(tmp_path / "rich", replace(given, reward=given.reward + 1e6))
    made = Context({"inputs.transitions": tmp_path / "rich"}, tmp_path / "again", tmp_path / "c", seed=1)
    made.folder.mkdir()
    python.run(STAGES["labelled"], made)
    relabelled = read_transitions(tmp_path / "again/outputs/transitions")
    assert np.array_equal(relabelled.reward, read_transitions(labelled[1]).reward)


def test_what_is_kept_is_the_action_that_was_taken(labelled, tmp_path, monkeypatch):
    """RLIF keeps the expert's action where it acts, and the policy's elsewhere; DAgger the expert's everywhere."""
    kept = []
    train("rlif", tmp_path / "rlif", labelled[1], monkeypatch, watch=kept)
    own = kept[1:]  # the first are the demonstrations
    shown = np.concatenate([steps.observation for steps in own])
    action = np.concatenate([steps.action for steps in own])
    expert = bind(STAGES["demonstrations"].policy, "policy").ask(0, {"observation_NO": shown, "spaces": make_spaces()})
    low = (shown[:, 0] < 0) & (np.arange(len(shown)) >= 40)  # the first steps are random
    assert low.sum() > 10
    assert np.array_equal(action[low], expert[low])
    above = (shown[:, 0] >= 0) & (np.arange(len(shown)) >= 40)
    assert above.any()
    assert not np.isclose(action[above], expert[above]).all()


def test_half_of_each_batch_is_demonstrations(labelled, tmp_path, monkeypatch):
    sizes, make_batch = [], training.Buffer.make_batch

    def count(self, place_B):
        sizes.append((self.capacity, len(place_B)))
        return make_batch(self, place_B)

    monkeypatch.setattr(training.Buffer, "make_batch", count)
    train("rlif", tmp_path / "rlif", labelled[1], monkeypatch)
    assert {size for capacity, size in sizes if capacity == 600} == {32}
    assert {size for capacity, size in sizes if capacity != 600} == {32}
    torch.manual_seed(0)


def test_the_comparators_have_the_same_expert_and_interventions():
    ours, theirs = STAGES["rlif"], STAGES["dagger"]
    assert ours.exploration == theirs.exploration
    assert (ours.environment_steps, ours.loss.use) == (3000, "sac")
    assert (theirs.environment_steps, theirs.loss.use, theirs.relabel.use) == (3000, "bc", "label_by_expert")
    assert STAGES["cloned"].environment_steps == 0
    assert (ours.data, theirs.data, STAGES["cloned"].data) == (["labelled"], ["demonstrations"], ["demonstrations"])
    assert dict(STAGES["report"].models) == {name: name for name in ("cloned", "dagger", "rlif")}
