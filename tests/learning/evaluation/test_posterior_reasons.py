"""Reasons that are written afterwards: forms, limits, and what is refused."""

import json

import numpy as np
import pytest

from learning.data.questions import Inquiry
from learning.data.rows import write_rows
from learning.evaluation.posterior_reasons import FORM, find_action
from learning.evaluation.sampled_answers import AnswerSample
from learning.lookup import bind
from learning.problems.text_games import text_games
from learning.teachers import text_games as teachers
from learning.text_game.rows import replay
from learning.text_game.world import list_actions
from schemas.errors import StepError
from schemas.use import ProblemsUse, RewardUse, SearchUse, TeacherUse

SEARCH = {
    "use": "posterior_reasons",
    "env": {"use": "tagged", "of": {"use": "text_game"}, "rules": {"go": "never"}, "max_turns": 6},
    "actions": "text_game_wanderer",
    "reason": "text_game_reasons",
    "form": "<go>{reason}</go>{action}",
    "explore": 1.0,
}


@pytest.fixture(scope="module")
def games():
    """Games that take two turns."""
    return text_games(size=3, split="train", turns=[2], rooms=2, items=1, holders=1, locks=0, crafts=False, seed=5)


def search(games, text="<go>so</go>look", **options):
    use = SearchUse.model_validate(SEARCH | options)
    return bind(use)(games, lambda rows: [[AnswerSample(text, "stop")] for _ in rows], lambda rows, texts: [])


def test_another_form_reaches_another_environment(games):
    rows = search(games, tries=20)
    explored = [row for row in rows if json.loads(row["metadata"])["explored"]]
    assert {row["id"].partition("~")[0] for row in explored} == {row["id"] for row in games}
    assert all(row["text"].startswith("<go>") and "</go>" in row["text"] for row in explored)
    assert {row["score"] for row in explored} == {1.0}
    assert len({row["id"] for row in rows if row["score"] == 0}) == 18  # six turns of each game, each with its own id
    assert search(games, tries=20) == rows
    assert search(games, tries=20, seed=1) != rows


def test_a_long_conversation_is_not_continued(games):
    length = len(games[0]["prompt"][0]["content"])
    rows = search(games[:1], tries=1, max_characters=length + 1)
    assert len(rows) == 1


def test_the_action_is_what_follows_its_mark():
    assert find_action("Thought: a\nAction: go north", FORM) == "go north"
    assert find_action("go north", FORM) == "go north"
    assert find_action("Thought: a\nAction: b\nAction: c ", FORM) == "c"
    assert find_action(" go north ", "{reason}{action}") == "go north"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "{action} for {reason}"}, "`form` must have {reason} and after it {action}"),
        ({"form": "{action}"}, "`form` must have {reason} and after it {action}"),
        ({"form": "{reason} {act}"}, r"no field \{act\}"),
        ({"env": SEARCH["env"] | {"context": {"use": "window", "keep": 1}}}, "the model sees all turns; remove it"),
    ],
)
def test_what_cannot_be_done_is_refused(games, options, message):
    with pytest.raises(StepError, match=message):
        search(games, **options)


def test_a_writer_behind_a_server_is_refused(games, monkeypatch):
    monkeypatch.setattr(teachers, "text_game_reasons", lambda row, rng, *, question="": Inquiry(None, []))
    with pytest.raises(StepError, match="must write texts; a server cannot be asked here"):
        search(games)


def test_the_wanderer_draws_every_possible_action_and_reasons_name_the_goal(games):
    game, rng = games[0], np.random.default_rng(0)
    draw = bind(TeacherUse.model_validate("text_game_wanderer"))
    assert {draw(game, rng) for _ in range(100)} == set(list_actions(*replay(game)))
    explain = bind(TeacherUse.model_validate("text_game_reasons"))

    def ask(action):
        goal = {"role": "user", "content": "put the cup in the box\nhall: cup"}
        return explain({"prompt": [goal, {"role": "user", "content": f"why: {action}"}]}, rng)

    assert [ask(action) for action in ("take cup", "open box", "take pen", "go north", "put pen in desk", "sing")] == [
        *("the goal is about the cup", "the goal is about the box", "it may be of use", "it may be further on"),
        *("it may belong there", "why not"),
    ]


def test_a_note_is_a_reward_and_rows_with_completions_are_problems(tmp_path):
    reward = bind(RewardUse.model_validate({"use": "notes.noted", "key": "outcome", "values": ["solved", "won"]}))
    texts = ['{"outcome": "won"}', '{"outcome": "failed"}', "{}", "", '{"outcome": ["won"]}', "no JSON"]
    rows = [{"metadata": text} for text in texts]
    assert reward.ask(0, {"rows": rows, "completions": [""] * 6}) == [1, -1, None, None, -1, None]
    row = {"id": "a", "prompt": [{"role": "user", "content": "q"}], "answer": None, "family": "f", "metadata": texts[0]}
    said = [{"role": "assistant", "content": "x"}]
    write_rows(tmp_path, "chat", [row | {"completion": said}] * 2)
    problems = bind(ProblemsUse.model_validate({"use": "answered", "data": "d"}), "p", {"p.data": tmp_path})()
    assert [{name: problem[name] for name in row} for problem in problems] == [row]
    assert "completion" not in problems[0]
