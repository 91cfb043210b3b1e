"""Language games: their rules, marks, players and problems."""

import json

import numpy as np
import pytest

from learning.environments.lookup_environment import build_environment
from learning.toy_tasks.language_games import THINGS, find_way, game_player, language_games, mark, step_from
from schemas.errors import StepError
from schemas.use import EnvUse

ENV = {"use": "language_games", "win": 1.0, "cost": 0.1}


def begin(game, answer="", **told):
    row = {"id": "r", "prompt": [], "answer": answer, "metadata": json.dumps({"game": game, **told})}
    return build_environment(EnvUse.model_validate(ENV), {}).begin(row, 0)


def test_the_maze_tells_where_one_is_and_ends_at_the_goal():
    episode = begin("maze", start=[1, 2])
    told = [episode.step(move) for move in ("south", "up", " east", "north")]
    assert [one.observation for one in told] == ["at 1 2", "what?", "at 1 3", ""]
    assert [one.reward for one in told] == pytest.approx([-0.1, -0.2, -0.1, 1.0])
    assert [(one.done, one.ok) for one in told] == [(False, True), (False, False), (False, True), (True, True)]
    assert step_from((0, 0), "north") == (0, 0)


def test_shortest_ways_go_around_walls():
    assert find_way((0, 2)) == ["south", "east", "north"]
    assert find_way((0, 3)) == []


def test_questions_and_guesses():
    episode = begin("questions", "duck")
    told = [episode.step(turn) for turn in ("flies?", "wooden ?", "cow", "green?", "flies", "duck")]
    assert [one.observation for one in told] == ["yes", "no", "no", "what?", "what?", ""]
    assert [one.done for one in told] == [False] * 5 + [True]
    assert len(THINGS) == len({frozenset(of.split()) for of in THINGS.values()}) == 12


def test_wordle_marks_each_letter_once():
    assert mark("b e d", "b e e") == "g g b"
    assert mark("d e b", "b e d") == "y g y"
    assert mark("m a p", "c u b") == "b b b"
    episode = begin("wordle", "bed")
    told = [episode.step(turn) for turn in ("b u n", "bun", "x y z", "b e d")]
    assert [one.observation for one in told] == ["g b b", "what?", "what?", ""]
    assert told[-1].reward == 1.0


@pytest.mark.parametrize("game", ["maze", "questions", "wordle"])
def test_a_player_without_errors_wins_and_one_with_errors_seldom(game):
    def count(error_rate):
        turns = []
        for number, row in enumerate(language_games(split="train", size=12, games=[game])):
            episode = build_environment(EnvUse.model_validate(ENV), {}).begin(row, 0)
            rng, messages = np.random.default_rng(number), list(row["prompt"])
            turns.append(0)
            for _ in range(30):
                turns[-1] += 1
                text = game_player(row | {"prompt": messages}, rng, error_rate=error_rate)
                outcome = episode.step(text)
                assert outcome.ok
                if outcome.done:
                    break
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": outcome.observation}]
        return sum(turns) / len(turns), max(turns)

    mean, most = count(0.0)
    assert most <= 8
    assert count(0.9)[0] > mean + 1


def test_problems_of_training_and_test_differ():
    train, test = (language_games(split=split, size=30, seed=2) for split in ("train", "test"))
    asked = [{row["prompt"][0]["content"] for row in rows} for rows in (train, test)]
    assert not asked[0] & asked[1]
    assert [row["family"] for row in train].count("wordle") == 30
    assert all(json.loads(row["metadata"])["game"] == row["family"] for row in train)
    shown = next(row for row in train if row["family"] == "wordle")
    assert shown["answer"] in shown["prompt"][0]["content"].split()[1:]
    assert train == language_games(split="train", size=30, seed=2)


def test_other_rows_are_refused():
    with pytest.raises(StepError, match="not that of a `language_games` problem"):
        build_environment(EnvUse.model_validate(ENV), {}).begin({"id": "r", "metadata": "{}"}, 0)
