"""Single facts: questions, answers to ask for, and experts that read what they find."""

import json

import numpy as np
import pytest

from learning.environments.lookup_environment import build_environment
from learning.toy_tasks.atlas import make_atlas
from learning.toy_tasks.encyclopaedia import fact_answers, fact_finder, fact_proposer, fact_questions, fact_reader
from schemas.errors import StepError
from schemas.use import EnvUse

TOOLS = {"use": "tools", "tools": [{"use": "search", "ranking": "bm25", "top": 2}]}


def play(row, write):
    """Return the turns of an expert with a real search."""
    episode, messages, turns = build_environment(EnvUse.model_validate(TOOLS), {}).begin(row, 0), row["prompt"], []
    while True:
        turns.append(write(row | {"prompt": messages}))
        outcome = episode.step(turns[-1])
        if outcome.done:
            return turns
        messages = [
            *messages,
            {"role": "assistant", "content": turns[-1]},
            {"role": "user", "content": outcome.observation},
        ]


def test_a_question_is_answered_by_as_many_searches_as_it_has_hops():
    rows = fact_questions(size=21, split="train", test_share=0.5, seed=3)
    for row in rows:
        turns = play(row, lambda shown: fact_finder(shown, np.random.default_rng(0)))
        assert turns[-1] == row["answer"]
        assert len(turns) - 1 == int(row["family"].removeprefix("facts"))
    held_out = fact_questions(size=12, split="test", test_share=0.5, seed=3)
    assert not {row["id"] for row in rows} & {row["id"] for row in held_out}
    with pytest.raises(StepError, match="raise `towns` or `hops`"):
        fact_questions(size=500, split="test")


def test_a_proposed_question_has_the_answer_that_was_wanted():
    rows = fact_answers(world=2)
    facts = {(town, kind): value for town, kind, value in make_atlas(10, 2)}
    assert {row["answer"] for row in rows} == {value for (_, kind), value in facts.items() if kind != "twin"}
    lengths = set()
    for place, row in enumerate(rows):
        rng = np.random.default_rng(place)
        question = play(row, lambda shown, rng=rng: fact_proposer(shown, rng))[-1]
        documents = json.loads(row["metadata"])["documents"]
        assert fact_reader("\n".join([*documents, question])) == row["answer"]
        lengths.add(question.count(" of "))
    assert lengths == {1, 2, 3}
    asked = [play(row, lambda shown: fact_proposer(shown, np.random.default_rng(0), hops=1)) for row in rows]
    assert {len(turns) for turns in asked} == {2}


def test_experts_err_at_their_rate():
    row = fact_questions(size=1, split="train", hops=[1])[0]
    said = {
        play(row, lambda shown, s=s: fact_finder(shown, np.random.default_rng(s), error_rate=1.0))[-1] for s in range(9)
    }
    assert len(said) > 1
    wanted = fact_answers()[0]
    asked = {
        play(wanted, lambda shown, s=s: fact_proposer(shown, np.random.default_rng(s), hops=1, error_rate=1.0))[-1]
        for s in range(12)
    }
    assert len(asked) > 2


@pytest.mark.parametrize("message", ["", "bam", "bam twin zed\nriver of bam?", "bam twin\ntwin of bam?", "x of y of z"])
def test_a_reader_says_what_it_does_not_know(message):
    assert fact_reader(message) == "unknown"


def test_foreign_problems_are_refused():
    row = {"id": "x", "prompt": [{"role": "user", "content": "hello"}]}
    for expert in (fact_finder, fact_proposer):
        with pytest.raises(StepError, match="row x is no"):
            expert(row, np.random.default_rng(0))
