"""The search `guided`: attempts in an environment, a second time with a hint where all have failed."""

import json

import pytest

from learning.evaluation.sampled_answers import AnswerSample
from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import SearchUse


def search(rows, say, **options):
    """Rows of the search in the environment `guess`; `say` answers a conversation with a text for each sample."""
    use = {"use": "guided", "env": {"use": "guess", "max_turns": 3}, "guide": {"use": "one_of", "texts": ["try 7"]}}
    asked = []

    def ask(requests):
        asked.append([row["id"] for row in requests])
        return [[AnswerSample(text, "stop") for text in say(row)] for row in requests]

    return bind(SearchUse.model_validate({**use, **options}))(rows, ask, lambda rows, texts: []), asked


def game(secret="7"):
    prompt = [{"role": "user", "content": "417 4-9"}]
    return {"id": "g", "prompt": prompt, "answer": secret, "family": "", "metadata": json.dumps({})}


def say_hint(row):
    return ["7", "5"] if "try 7" in row["prompt"][0]["content"] else ["5", "4"]


def test_a_hint_stands_below_the_problem_of_the_second_attempts():
    rows, asked = search([game()], say_hint)
    assert [(row["text"], row["score"]) for row in rows] == [("7", 1.0), ("5", pytest.approx(0.0))]
    assert [row["prompt"] for row in rows] == [game()["prompt"]] * 2
    kept, _ = search([game()], say_hint, keep_guidance=True)
    assert kept[0]["prompt"][0]["content"] == "417 4-9\ntry 7"
    assert sum("~again" in name for names in asked for name in names) >= 1


def test_without_guidance_the_second_attempts_are_like_the_first():
    rows, asked = search([game()], say_hint, guidance=False)
    assert rows == []  # all are equal, so that no two compete
    assert any("~again" in name for names in asked for name in names)


def test_turns_that_differ_are_compared_after_those_that_are_shared():
    def say(row):
        return {1: ["4", "4"], 3: ["7", "9"]}.get(len(row["prompt"]), ["5", "5"])

    rows, asked = search([game()], say)
    assert [row["text"] for row in rows] == ["7", "9"]
    assert [message["content"] for message in rows[0]["prompt"]][:2] == ["417 4-9", "4"]
    assert not any("~again" in name for names in asked for name in names)
    # Two attempts with one conversation are one request.
    assert len(asked[1]) == 1
    ends, _ = search([game()], say, returns="end")
    assert [len(row["prompt"]) for row in ends] == [1, 1]


def test_a_context_has_no_effect_and_is_refused():
    env = {"use": "guess", "max_turns": 3, "context": {"use": "window", "keep": 1}}
    with pytest.raises(StepError, match="has no effect here"):
        search([game()], say_hint, env=env)
