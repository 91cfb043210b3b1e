"""Searches with titles to find and pages to open, and reports on what they have read."""

import json

import numpy as np
import pytest

from learning.environments.lookup_environment import build_environment
from learning.toy_tasks.reports import deep_finder, deep_questions, report_writer, traces
from schemas.errors import StepError
from schemas.use import EnvUse

TOOLS = {
    "use": "tools",
    "tools": [{"use": "search", "field": "titles", "ranking": "bm25", "top": 2}, {"use": "search", "called": "open"}],
}


def play(row, **options):
    episode, messages, turns = build_environment(EnvUse.model_validate(TOOLS), {}).begin(row, 0), row["prompt"], []
    rng = np.random.default_rng(3)
    while len(turns) < 20:
        turns.append(deep_finder(row | {"prompt": messages}, rng, **options))
        outcome = episode.step(turns[-1])
        if outcome.done:
            break
        said = [{"role": "assistant", "content": turns[-1]}, {"role": "user", "content": outcome.observation}]
        messages = [*messages, *said]
    return turns


def test_a_fact_takes_a_search_and_an_open_page():
    for row in deep_questions(size=20, split="train"):
        turns = play(row)
        assert turns[-1] == row["answer"]
        assert [turn.partition(":")[0] for turn in turns[:-1]] == ["search", "open"] * int(row["family"][-1])


def test_a_missing_document_is_unknown():
    rows = deep_questions(size=20, split="train", lost=1.0)
    assert json.loads(rows[0]["metadata"]) == {"documents": [], "titles": []}
    some = deep_questions(size=30, split="train", lost=0.3)
    ends = {play(row)[-1] == row["answer"] for row in some}
    assert ends == {True, False}
    assert {play(row)[-1] for row in some if play(row)[-1] != row["answer"]} == {"unknown"}


def test_errors_repeat_searches_or_answer_with_another_word():
    row = deep_questions(size=1, split="train", hops=[1])[0]
    turns = play(row, error_rate=0.8)
    assert turns.count(turns[0]) > 1
    assert play(row, error_rate=0.0).count(turns[0]) == 1


def test_a_trace_has_what_was_read_and_its_report_cites_it():
    for row in traces(size=20, split="train"):
        read = json.loads(row["metadata"])["read"]
        assert row["prompt"][0]["content"].endswith("? " + "; ".join(read))
        report = report_writer(row, np.random.default_rng(0))
        assert report.startswith(f"plan: {read[0].split()[1]}")
        assert all(f"{text} [{place}]" in report for place, text in enumerate(read, 1))
        assert report.endswith(f"answer: {row['answer']}")
        assert read[-1].endswith(row["answer"])


def test_foreign_problems_are_refused():
    row = {"id": "x", "prompt": [{"role": "user", "content": "hello"}], "metadata": "{}"}
    for expert in (deep_finder, report_writer):
        with pytest.raises(StepError, match="row x is no"):
            expert(row, np.random.default_rng(0))
