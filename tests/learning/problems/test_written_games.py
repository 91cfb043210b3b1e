"""Games that were written as JSON: what a filter keeps becomes problems of the text game, each once."""

import json

import pytest

from learning.curation.row_filters import playable
from learning.data.rows import write_rows
from learning.problems.written_games import written_games
from learning.text_game.written import compile_game, walk_through
from schemas.errors import StepError

GAME = {
    "rooms": {"shed": {"east": "yard"}, "yard": {"west": "shed"}},
    "holders": {"shelf": {"room": "shed"}},
    "items": {"rake": "yard"},
    "start": "shed",
    "goal": {"item": "rake", "holder": "shelf"},
}
PLAN = ["go east", "take rake", "go west", "put rake in shelf"]


def row_of(name, text):
    prompt = [{"role": "user", "content": "write"}]
    about = {"answer": None, "family": "idea", "metadata": None}
    return {"id": name, "prompt": prompt, **about, "completion": [{"role": "assistant", "content": text}]}


def test_a_game_is_solved_and_kept_if_its_solution_has_the_length():
    text = json.dumps(GAME)
    assert walk_through(*compile_game(text)) == PLAN
    row = row_of("a", text)
    assert [playable(row), playable(row, least=5), playable(row, most=3)] == [True, False, False]


def test_equal_games_are_one_problem_and_begin_with_the_instruction(tmp_path):
    texts = [json.dumps(GAME), json.dumps(dict(reversed(GAME.items())), indent=1)]
    write_rows(tmp_path, "chat", [row_of(str(place), text) for place, text in enumerate(texts)])
    (game,) = written_games(data=tmp_path, instruction="Play. ")
    assert game["prompt"][0]["content"].startswith("Play. put the rake in the shelf\nshed: shelf (empty)")
    assert game["family"] == "text_game4"


def test_a_game_that_is_over_or_cannot_be_played_is_no_problem(tmp_path):
    over = json.dumps({**GAME, "items": {"rake": "shelf"}})
    with pytest.raises(ValueError, match="it is solved before it begins"):
        walk_through(*compile_game(over))
    write_rows(tmp_path, "chat", [row_of("a", over)])
    with pytest.raises(StepError, match="row a: it is solved before it begins"):
        written_games(data=tmp_path)
