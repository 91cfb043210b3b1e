"""Every environment can be searched: without `save`, an episode goes back by carrying its turns out again."""

import json

import pytest

from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import HasStateName, Outcome, Savable
from learning.environments.replayed import Replayed, make_savable
from schemas.errors import StepError
from schemas.use import EnvUse

ROW = {"id": "a", "prompt": [{"role": "user", "content": "go"}], "answer": "3", "metadata": None}


class Echo:
    """Repeats the first turn."""

    def __init__(self, noise: str = "") -> None:
        self.noise, self.said = noise, []

    def step(self, action: str) -> Outcome:
        self.said.append(action)
        return Outcome(self.said[0] + self.noise, reward=0.1 * len(self.said), seconds=float(len(self.noise)))


class Named(Echo):
    """An episode with a name of its state."""

    @property
    def state_name(self) -> str:
        return "/".join(self.said)


def copy(first: Savable, second: Savable) -> None:
    second.restore(json.loads(json.dumps(first.save())))


def test_an_episode_goes_on_in_another_one_as_it_would_have():
    first, second = make_savable(Echo()), make_savable(Echo())
    first.step("one")
    first.step("two")
    copy(first, second)
    outcome = second.step("three")
    assert outcome == first.step("three")
    assert (outcome.observation, outcome.reward) == ("one", pytest.approx(0.3))
    third = make_savable(Echo())
    copy(second, third)
    assert third.save() == first.save()
    assert [turn for turn, _ in third.save()["turns"]] == ["one", "two", "three"]


def test_a_state_that_was_saved_is_not_changed_by_later_turns():
    first, second = make_savable(Echo()), make_savable(Echo())
    first.step("one")
    saved = first.save()
    first.step("two")
    second.restore(saved)
    assert second.step("x").reward == pytest.approx(0.2)


def test_names_of_states_stay_and_episodes_with_methods_of_their_own_are_left_alone():
    named = make_savable(Named())
    named.step("one")
    assert isinstance(named, HasStateName)
    assert named.state_name == "one"
    assert not isinstance(make_savable(Echo()), HasStateName)
    guess = build_environment(EnvUse.model_validate("guess"), {}).begin(ROW, 0)
    assert make_savable(guess) is guess


def test_another_outcome_is_refused_but_not_another_duration():
    first, changed = Replayed(Echo()), Replayed(Echo("!"))
    first.step("one")
    with pytest.raises(StepError, match="turn 1 of an episode had another outcome"):
        copy(first, changed)
    slow = Replayed(Echo())
    slow.episode.step = lambda action: Outcome("one", reward=0.1, seconds=9.0)  # pyright: ignore[reportAttributeAccessIssue]
    copy(first, slow)


@pytest.mark.parametrize("turns", [["calculator: 2+2"], ["calculator: 2+2", "calculator: 3*3", "nonsense: x"]])
def test_tools_go_on_with_the_random_numbers_of_their_turn(turns):
    world = build_environment(EnvUse.model_validate({"use": "tools", "tools": ["calculator"]}), {})
    first, second = world.begin(ROW, 5), world.begin(ROW, 5)
    assert isinstance(first, Savable)
    assert isinstance(second, Savable)
    for turn in turns:
        first.step(turn)
    copy(first, second)
    assert second.save() == first.save() == {"turns": len(turns)}
    assert second.step("calculator: 7*6") == first.step("calculator: 7*6")
