import json
import threading

import gymnasium
import pytest

from learning.environments.lookup_environment import build_environment
from learning.environments.time_limit import StepTimeout, call_within
from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse

ACTIONS = {"left": 0, "down": 1, "right": 2, "up": 3}
LAKE = {
    "use": "gymnasium",
    "id": "FrozenLake-v1",
    "actions": ACTIONS,
    "kwargs": {"is_slippery": False, "max_episode_steps": 8},
}


class Stuck(gymnasium.Env):
    """Blocks in its first step, or raises in it."""

    action_space, observation_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(1)
    free = threading.Event()

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        if action:
            raise RuntimeError("broken")
        self.free.wait()
        return 0, 0.0, True, False, {}


def make(**more):
    return build_environment(EnvUse.model_validate(LAKE | more), {})


def begin(environment, start=0):
    return environment.begin({"id": "a", "metadata": json.dumps({"start": start})}, seed=0)


def test_the_way_to_the_goal_earns_its_reward_and_a_hole_ends_the_episode():
    way = ["down", "down", "right", "right", "down", "right"]
    play = begin(make())
    outcomes = [play.step(f"I go {word}") for word in way]
    assert [o.observation for o in outcomes] == ["4", "8", "9", "10", "14", ""]
    assert [o.reward for o in outcomes] == [0, 0, 0, 0, 0, 1]
    assert [o.done for o in outcomes] == [False] * 5 + [True]
    play = begin(make())
    assert (play.step("right").observation, play.step("down").done) == ("1", True)


def test_the_last_action_of_a_turn_counts_and_an_unknown_one_costs_nothing():
    play = begin(make())
    wrong = play.step("upwards")
    assert (wrong.observation, wrong.ok, wrong.done) == ("write one of: left, down, right, up", False, False)
    assert play.step("not left, but DOWN").observation == "4"


def test_a_template_shows_observation_reward_and_screen():
    play = begin(make(template="{screen}|{observation}|{reward}|{other}"))
    assert play.shown == "[S]FFF\nFHFH\nFFFH\nHFFG|0|0|{other}"
    assert play.step("right").observation.startswith("(Right)\nS[F]FF\nFHFH")


def test_starts_are_reset_with_seeds_that_the_splits_do_not_share():
    lake = LAKE | {"id": "Taxi-v4", "actions": {"north": 1}, "kwargs": {}}
    use = {"use": "starts", "env": lake, "size": 40, "instruction": "at "}
    rows = {split: bind(ProblemsUse(**use, split=split))() for split in ("train", "test")}
    starts = {split: {json.loads(row["metadata"])["start"] for row in made} for split, made in rows.items()}
    assert not starts["train"] & starts["test"]
    assert len({row["prompt"][0]["content"] for row in rows["train"]}) > 20
    environment = build_environment(EnvUse.model_validate(lake), {})
    row = rows["test"][3]
    plays = [environment.begin(row, seed) for seed in (0, 1)]
    assert row["prompt"][0]["content"] == f"at {plays[0].shown}"
    assert plays[0].step("north") == plays[1].step("north")


def test_a_step_that_blocks_or_fails_ends_its_episode_alone():
    gymnasium.register("Stuck-v0", entry_point=Stuck)
    try:
        environment = make(id="Stuck-v0", actions={"wait": 0, "break": 1}, kwargs={}, seconds=0.05)
        blocked, broken = (begin(environment).step(word) for word in ("wait", "break"))
        assert (blocked.observation, blocked.done, blocked.ok) == ("error: no answer within 0.05 seconds", True, False)
        assert (broken.observation, broken.done, broken.ok) == ("error: broken", True, False)
    finally:
        Stuck.free.set()
        del gymnasium.registry["Stuck-v0"]
    with pytest.raises(StepTimeout):
        call_within(0.01, threading.Event().wait)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"id": "Nowhere-v9"}, "Nowhere-v9 cannot be made"),
        ({"actions": {}}, r"takes Discrete\(4\): give `actions`"),
        ({"actions": {"jump": 9}}, r"takes Discrete\(4\), not 9 \(action `jump`\)"),
    ],
)
def test_a_wrong_recipe_is_refused_by_name(more, message):
    with pytest.raises(StepError, match=message):
        make(**more)


def test_a_row_without_a_start_is_refused():
    with pytest.raises(StepError, match=r"row a names no start; make problems with \{use: starts\}"):
        make().begin({"id": "a", "metadata": None}, seed=0)
