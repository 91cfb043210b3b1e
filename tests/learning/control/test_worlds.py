"""Worlds: seeds, spaces, and states that come back by the same actions."""

import gymnasium
import numpy as np
import pytest

from learning.control.stepping.spaces import Spaces, read_spaces
from learning.control.stepping.worlds import Worlds
from learning.control.stepping.worlds import gymnasium as make_by_id
from schemas.control import WorldUse
from schemas.errors import StepError
from tests.control_worlds import Corridor, Line, Restless


def test_each_episode_starts_from_a_seed_of_its_own_and_the_same_again():
    starts = []
    for _ in range(2):
        worlds = Worlds(lambda: Line(limit=1), 3, seed=4, purpose="test")
        seen = [worlds.observation.copy()]
        for _ in range(5):
            worlds.step(np.zeros((3, 1), np.float32))
            seen.append(worlds.observation.copy())
        starts.append(np.stack(seen))
    assert np.array_equal(*starts)
    assert len(np.unique(starts[0])) == 18  # 3 worlds, 6 episodes of each, none like another


def test_choices_begin_at_the_spaces_start_and_observations_are_one_hot():
    worlds = Worlds(lambda: Corridor(cells=3, limit=9), 1, seed=0, purpose="test")
    assert worlds.spaces == Spaces(observations=3, actions=2, start=1)
    while not (steps := worlds.step(np.array([1]))).ended:
        pass
    assert steps.next_observation.tolist() == [[0.0, 0.0, 1.0]]
    assert steps.terminated.tolist() == [True]
    assert steps.truncated.tolist() == [False]
    assert steps.ended[0][1] == 1.0


def test_an_action_outside_the_box_is_clipped_for_the_world_and_kept_as_it_was():
    worlds = Worlds(Line, 1, seed=0, purpose="test")
    start = worlds.observation[0, 0]
    steps = worlds.step(np.array([[7.0]], np.float32))
    assert steps.next_observation[0, 0] == pytest.approx(start + 0.5)
    assert steps.action.tolist() == [[7.0]]


def test_a_saved_state_comes_back_by_the_same_actions():
    def act(worlds, rng, count):
        return [worlds.step(rng.uniform(-1, 1, (2, 1)).astype(np.float32)) for _ in range(count)]

    worlds = Worlds(lambda: Line(limit=5, noise=0.3), 2, seed=1, purpose="test")
    act(worlds, np.random.default_rng(0), 7)
    tensors, state = worlds.save()
    expected = act(worlds, np.random.default_rng(1), 6)
    other = Worlds(lambda: Line(limit=5, noise=0.3), 2, seed=1, purpose="test")
    other.restore(tensors, state)
    for first, second in zip(expected, act(other, np.random.default_rng(1), 6), strict=True):
        assert np.array_equal(first.observation, second.observation)
        assert np.array_equal(first.reward, second.reward)
        assert first.ended == second.ended


def test_a_world_that_cannot_be_repeated_is_refused_when_it_should_be_continued():
    worlds = Worlds(Restless, 1, seed=0, purpose="test")
    worlds.step(np.zeros((1, 1), np.float32))
    saved = worlds.save()
    with pytest.raises(StepError, match="same seed and actions lead to another observation"):
        Worlds(Restless, 1, seed=0, purpose="test").restore(*saved)


def test_a_reward_that_is_not_finite_is_refused():
    class Broken(Line):
        def step(self, action):
            return *super().step(action)[:1], float("nan"), False, False, {}

    with pytest.raises(StepError, match="reward nan"):
        Worlds(Broken, 1, seed=0, purpose="test").step(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize(
    "space",
    [gymnasium.spaces.MultiBinary(3), gymnasium.spaces.Box(0, 5, (2,), np.int64)],
    ids=["binary", "integers"],
)
def test_other_actions_than_choices_and_boxes_are_refused(space):
    world = Line()
    world.action_space = space
    with pytest.raises(StepError, match="neither choices nor numbers"):
        read_spaces(world)


def test_a_box_without_bounds_is_refused():
    world = Line()
    world.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    with pytest.raises(StepError, match="RescaleAction"):
        read_spaces(world)


@pytest.mark.parametrize(
    ("written", "use", "options"),
    [
        ("Pendulum-v1", "gymnasium", {"id": "Pendulum-v1"}),
        ("ale_py:ALE/Pong-v5", "gymnasium", {"id": "ale_py:ALE/Pong-v5"}),
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid", {"id": "MiniGrid-Empty-5x5-v0"}),
        ("my_lab.worlds:corridor", "my_lab.worlds:corridor", {}),
    ],
)
def test_an_env_is_an_id_or_a_function(written, use, options):
    read = WorldUse.model_validate(written)
    assert (read.use, read.options) == (use, options)


def test_an_id_of_a_module_of_ones_own_is_refused_since_its_code_would_not_be_in_the_key():
    with pytest.raises(StepError, match="name a function that returns the environment"):
        make_by_id(id="tests.control_worlds:Line-v0")


def test_an_unknown_id_is_an_error_with_its_name():
    with pytest.raises(StepError, match="Pendulum-v77 cannot be made"):
        make_by_id(id="Pendulum-v77")
