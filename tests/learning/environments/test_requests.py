"""Several requests of a user in one episode: when the next one is shown, and what each of them is told."""

import json

import pytest

from learning.environments.lookup_environment import build_environment
from schemas.errors import StepError
from schemas.use import EnvUse

REQUESTS = [{"text": "1+1="}, {"text": "find bob", "replies": {"find": {"bob": "203"}}}, {"text": "bye"}]
USE = {"use": "tools", "tools": ["calculator", {"use": "recorded", "called": "find", "of": "find"}]}


def begin(requests, **notes):
    row = {"id": "r", "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "1+1="}], "answer": ""}
    row["metadata"] = json.dumps({"requests": requests, **notes})
    return build_environment(EnvUse.model_validate({"use": "requests", "of": USE}), {}).begin(row, 0)


def test_the_next_request_answers_the_turn_that_ends_the_one_before():
    episode = begin(REQUESTS)
    outcomes = [episode.step(turn) for turn in ("calculator: 1+1", "2", "find: bob", "203", "bye")]
    assert [o.observation for o in outcomes] == ["2", "find bob", "203", "bye", ""]
    assert [o.done for o in outcomes] == [False, False, False, False, True]
    assert [o.kind for o in outcomes] == ["request 0", "request 0", "request 1", "request 1", "request 2"]


def test_entries_of_a_request_hold_for_it_alone():
    episode = begin(REQUESTS, replies={"find": {"ann": "417"}})
    assert episode.step("find: ann").observation == "417"
    episode.step("2")
    assert [episode.step(f"find: {name}").ok for name in ("ann", "bob")] == [False, True]
    assert [row["prompt"][-1]["content"] for row in episode.rows] == ["1+1=", "find bob", "bye"]
    assert {row["prompt"][0]["content"] for row in episode.rows} == {"s"}


@pytest.mark.parametrize("requests", [None, [], "bye", ["bye"], [{"ask": "bye"}], [{"text": 3}]])
def test_rows_without_requests_are_refused(requests):
    with pytest.raises(StepError, match="env requests: row r: its metadata needs `requests`"):
        begin(requests)


def test_one_function_can_be_several_tools_by_name():
    twice = [{"use": "recorded", "called": "find", "of": "find"}, {"use": "recorded", "called": "when", "of": "when"}]
    row = {"id": "r", "prompt": [], "metadata": json.dumps({"replies": {"find": {"a": "1"}, "when": {"a": "2"}}})}
    episode = build_environment(EnvUse.model_validate({"use": "tools", "tools": twice}), {}).begin(row, 0)
    assert [episode.step(f"{tool}: a").observation for tool in ("find", "when", "recorded")] == [
        "1",
        "2",
        "no tool recorded; there are find, when",
    ]
    with pytest.raises(StepError, match="two tools are called find; give one of them another name by `called`"):
        build_environment(EnvUse.model_validate({"use": "tools", "tools": [twice[0], twice[0]]}), {})
