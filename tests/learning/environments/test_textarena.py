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
        ({"id": "TicTacToe-v0"}, "is no game for one player; give an `opponent`"),
        ({"player": 1}, "`player: 1` needs an `opponent`"),
    ],
)
def test_a_wrong_recipe_is_refused_by_name(more, message):
    with pytest.raises(StepError, match=message):
        make(**more)


LEGAL = {"use": "one_shown", "pattern": r"'(\[\d\])'"}


def play_against(player, seed, opponent=LEGAL):
    """A game of tic-tac-toe in which the model takes the first square that the game lists."""
    environment = make(id="TicTacToe-v0", opponent=opponent, player=player)
    play = environment.begin({"id": "a", "metadata": json.dumps({"start": 3})}, seed)
    seen = [play.shown]
    while True:
        outcome = play.step(re.findall(r"\[\d\]", seen[-1].splitlines()[-1])[0])
        seen.append(outcome.observation)
        if outcome.done:
            return seen, outcome, play.game.state.game_state["board"]


@pytest.mark.parametrize(("player", "mark"), [(0, "O"), (1, "X")])
def test_a_game_for_two_is_played_against_a_scripted_opponent_and_pays_the_models_side(player, mark):
    rewards = set()
    for seed in range(8):
        seen, outcome, board = play_against(player, seed)
        assert f"You are Player {player} in Tic Tac Toe" in seen[0]
        assert ("Player 0 placed" in seen[0]) == bool(player)
        assert outcome.ok
        lines = [
            *board,
            *zip(*board, strict=True),
            [board[i][i] for i in range(3)],
            [board[i][2 - i] for i in range(3)],
        ]
        winners = {line[0] for line in map(list, lines) if line[0] and len(set(line)) == 1}
        assert outcome.reward == (0 if not winners else 1 if winners == {mark} else -1)
        rewards.add(outcome.reward)
        assert play_against(player, seed)[0] == seen
    assert {1, -1} <= rewards
    starts = {play_against(player, seed)[0][0] for seed in range(4)}
    assert len(starts) == 1, "what is seen first is the start's alone"


def test_an_opponent_that_plays_illegally_loses():
    seen, outcome, _ = play_against(0, 0, {"use": "one_of", "texts": ["[9]"]})
    assert (len(seen), outcome.reward, outcome.ok) == (2, 1.0, True)


def test_a_teacher_without_a_move_to_choose_from_ends_the_step():
    with pytest.raises(StepError, match=r"teacher one_shown: row TicTacToe-v0: nothing in its prompt matches 'no'"):
        play_against(0, 0, {"use": "one_shown", "pattern": "no"})
