"""Answers that have to agree with what an episode has shown: gates, parts, and what other turns earn."""

import pytest

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Outcome
from schemas.use import EnvUse


class Environment:
    """Show two turns, each for a quarter; `bad` is refused. The third turn is the answer."""

    def begin(self, row: Row, seed: int) -> "Echo":
        """Return an episode."""
        return Echo()


class Echo:
    """The number of turns."""

    def __init__(self) -> None:
        self.turns = 0

    def step(self, action: str) -> Outcome:
        """Repeat a turn."""
        self.turns += 1
        done = self.turns == 3
        return Outcome("" if done else action, done, 0.25, 2.0, ok="bad" not in action)


def long_enough(rows, completions, *, least: int = 0):
    """Score answers of so many characters; no score for one with a question mark."""
    return [None if "?" in text else float(len(text) >= least) for text in completions]


def walk(*turns, **options):
    use = EnvUse.model_validate({"use": "grounded", "of": f"{__name__}:Environment", **options})
    episode = build_environment(use, {}).begin({"id": "r"}, 0)
    return [episode.step(turn) for turn in turns]


def test_an_answer_earns_one_if_every_part_was_shown():
    assert [o.reward for o in walk("a", "b\n c", "a,b, c")] == [0.25, 0.25, 1.25]
    assert walk("a", "b", "a,d")[-1].reward == 0.25
    assert walk("a", "bad, b", "a, b")[-1] == Outcome("", done=True, reward=0.25, seconds=2.0)
    assert walk("a", " , ", "")[-1].reward == 0.25


def test_parts_are_whole_and_may_have_another_separator():
    assert walk("x", "cost 50", "cost 5")[-1].reward == 0.25
    assert walk("x", "cost 5", "cost 50")[-1].reward == 0.25
    assert walk("one; two, x", "y", "two, x; one", separator=";")[-1].reward == 1.25
    assert walk("one; two, x", "y", "two; one", separator=";")[-1].reward == 0.25


def test_a_share_is_that_of_the_parts():
    assert walk("b, c", "x", "a, b, c", share=True)[-1].reward == pytest.approx(0.25 + 2 / 3)
    assert walk("b, c", "x", " ", share=True)[-1].reward == 0.25


def test_the_gate_comes_first_and_an_answer_without_a_score_fails():
    gate = {"use": f"{__name__}:long_enough", "least": 4}
    assert walk("one", "x", "one", by=gate)[-1].reward == 0.25
    assert walk("four", "x", "four", by=gate)[-1].reward == 1.25
    assert walk("one?", "x", "one?", by=f"{__name__}:long_enough")[-1].reward == 0.25
    assert walk("one", "x", "one", by=gate, at_least=0.0)[-1].reward == 1.25
