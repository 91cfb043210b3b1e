"""Games of guessing: who listens halves what is left, who does not tries at random."""

import numpy as np
import pytest

from learning.toy_tasks.environments.guess import Environment
from learning.toy_tasks.guesses import guesser, guesses
from schemas.errors import StepError


def turns_of(row, rng, **how):
    """Turns until the number is found."""
    game, messages = Environment().begin(row, 0), list(row["prompt"])
    for turn in range(1, 12):
        reply = guesser({**row, "prompt": messages}, rng, **how)
        outcome = game.step(reply)
        if outcome.done:
            assert (reply, outcome.reward) == (row["answer"], 1.0)
            return turn
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": outcome.observation}]
    raise AssertionError(row)


def test_halving_finds_one_of_seven_in_three_turns_and_chance_takes_four_on_average():
    rows, rng = guesses(split="train", size=600, span=7), np.random.default_rng(0)
    halved = [turns_of(row, rng, listens=1.0) for row in rows]
    tried = [turns_of(row, rng, listens=0.0) for row in rows]
    assert max(halved) == 3
    assert np.mean(halved) == pytest.approx((1 + 2 * 2 + 4 * 3) / 7, abs=0.1)
    assert max(tried) == 7
    assert np.mean(tried) == pytest.approx(4.0, abs=0.25)


def test_games_of_one_side_are_never_on_the_other_and_answers_are_even():
    train, test = (guesses(split=split, size=150, seed=4) for split in ("train", "test"))
    assert not {row["prompt"][0]["content"] for row in train} & {row["prompt"][0]["content"] for row in test}
    assert guesses(split="test", size=150, seed=4) == test
    offsets = [int(row["answer"]) - int(row["prompt"][0]["content"][4]) for row in train]
    assert [offsets.count(k) / 150 for k in range(3)] == pytest.approx([1 / 3] * 3, abs=0.1)
    with pytest.raises(StepError, match="lower `size`"):
        guesses(split="test", size=999)
