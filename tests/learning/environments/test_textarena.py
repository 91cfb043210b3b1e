import json
import random
import re

import pytest

from learning.environments.lookup_environment import build_environment
from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse

GUESS = {"use": "textarena", "id": "GuessTheNumber-v0"}


def make(**more):
    return build_environment(EnvUse.model_validate(GUESS | more), {})


def begin(environment, start=0):
    return environment.begin({"id": "a", "metadata": json.dumps({"start": start})}, seed=0)


def find_number(start):
    """The number of a start, as Python's generator draws it first."""
    return random.Random(start).randint(1, 20)


def test_hints_lead_to_the_number_and_its_reward():
    play, low, high, outcome = begin(make(), 5), 1, 20, None
    assert "number between 1 and 20 within 10 turns" in play.shown
    while outcome is None or not outcome.done:
        guess = (low + high) // 2
        outcome = play.step(f"I guess [{guess}]")
        if not outcome.done:
            assert outcome.observation == f"The target number is {'lower' if guess > find_number(5) else 'higher'}."
            low, high = (low, guess - 1) if "lower" in outcome.observation else (guess + 1, high)
    assert (guess, outcome.reward, outcome.ok) == (find_number(5), 1.0, True)


def test_a_turn_without_brackets_is_put_in_brackets_and_a_second_wrong_one_ends_the_game():
    play = begin(make(), 5)
    assert "target number is" in play.step(str(find_number(5) % 20 + 1)).observation
    wrong = play.step("[no number]")
    assert (wrong.ok, wrong.done) == (False, False)
    assert "invalid move" in wrong.observation
    last = play.step("[99]")
    assert (last.ok, last.done) == (False, True)
    assert last.reward == pytest.approx(1 - abs(find_number(5) % 20 + 1 - find_number(5)) / 19)


def test_episodes_do_not_share_random_numbers():
    """2048 draws a tile after every move, from random numbers of its reset."""
    game = {"id": "2048-v0-easy"}
    moves = ["[up]", "[left]", "[down]", "[left]", "[up]", "[right]"]
    alone = begin(make(**game), 3)
    boards = [alone.step(move).observation for move in moves]
    first, other = begin(make(**game), 3), begin(make(**game), 4)
    before = random.getstate()
    together = []
    for move in moves:
        together.append(first.step(move).observation)
        other.step(move)
    assert together == boards
    assert len(set(boards)) == len(moves)
    assert random.getstate() == before


def test_starts_of_the_splits_differ():
    rows = {s: bind(ProblemsUse(use="starts", env=GUESS, size=20, split=s))() for s in ("train", "test")}
    starts = {split: {json.loads(row["metadata"])["start"] for row in made} for split, made in rows.items()}
    assert not starts["train"] & starts["test"]
    assert re.search("Guess The Number", rows["train"][0]["prompt"][0]["content"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"id": "GuesTheNumber-v0"}, "no game `GuesTheNumber-v0`; did you mean `GuessTheNumber-v0`"),
        ({"kwargs": {"colour": "red"}}, "GuessTheNumber-v0 cannot be made: TypeError"),
        ({"id": "TicTacToe-v0"}, "is no game for one player"),
    ],
)
def test_a_wrong_recipe_is_refused_by_name(more, message):
    with pytest.raises(StepError, match=message):
        make(**more)
