"""Beyond Ten Turns: questions are made harder without losing their answer, and updates do not wait for the longest.

Not shown: 40 turns with a search tool and 150k tokens; a look-up is a word of one completion here. A question that a
model answers unseen is dropped, with the model of the recipe's stage replaced by a script.
"""

import json
from pathlib import Path

import pytest

from learning.drives import whole
from learning.engines.protocol import Sampling
from learning.engines.torch import Engine
from learning.lookup import bind
from learning.loop.rollout import Sampler
from learning.loop.trials import Ask
from learning.worlds.atlas import atlas, found, needed
from schemas.recipe import load_recipe
from tests.papers.loops import letters

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "asearcher.yaml"
STAGES = load_recipe(RECIPE, profile="tiny").stages
TURN = 1
"""Decode steps of a turn, on the clock that counts them."""


@pytest.fixture(scope="module")
def questions():
    return bind(STAGES["questions"].problems[0])()


def parsed(text):
    """A question as a query again."""
    text = text.removesuffix("?")
    if text.startswith("town with "):
        _, _, relation, word = text.split()
        return ("with", relation, word)
    relation, of, inner = text.partition(" of ")
    return (relation, parsed(inner)) if of else text


def test_every_round_keeps_the_answer(questions):
    documents = atlas(15, 0)
    kinds = {"seed": 0, "inject": 0, "fuzz": 0}
    for row in questions:
        steps = json.loads(row["metadata"])["steps"]
        assert row["prompt"][0]["content"].endswith(f". {steps[-1][1]}?")
        for kind, text in steps:
            kinds[kind] += 1
            assert found(parsed(text), documents) == {row["answer"]}
    assert min(kinds.values()) > 50


def test_every_injection_takes_one_document_more(questions):
    documents = atlas(15, 0)
    for row in questions:
        steps = json.loads(row["metadata"])["steps"]
        read = [len(needed(parsed(text), documents)) for _, text in steps]
        for (kind, _), before, after in zip(steps[1:], read, read[1:], strict=False):
            # A twin may lead back to a town whose document is read anyway, and a fuzzed word to several at first.
            assert after == before + 1 if kind == "inject" and "with" not in steps[-1][1] else after >= before


def test_a_question_that_is_answered_without_its_documents_is_dropped(answering, questions, monkeypatch):
    import learning.evaluating.verdicts

    known = {row["prompt"][0]["content"].rpartition(". ")[2]: row["answer"] for row in questions[:20]}
    guesser = answering(lambda prompt, number: next((a for q, a in known.items() if q in prompt and number == 1), "no"))
    monkeypatch.setattr(learning.evaluating.verdicts, "guest", lambda folder: guesser)
    keep = bind(STAGES["unknown"].filters[0], "filters.0", {"filters.0.model": Path("guesser")})
    assert [keep(row) for row in questions[:40]] == [False] * 20 + [True] * 20
    documents = {" ".join(document) for document in atlas(15, 0)}
    assert not any(document in prompt for prompt in guesser.engine.prompts for document in documents)


LONG = dict(zip("abcdefghijklmno", [4] * 15, strict=True)) | {"z": 40}


def test_updates_go_on_while_the_long_trajectory_does(scripted, loop):
    """One trajectory of 40 turns among fifteen of 4, on a clock that counts turns: four turns pass in an update."""
    policy = scripted(LONG)
    rows = letters("zabcdefghijklmno")
    run = loop(STAGES["trained"], policy, rows, num_groups=16, max_steps=8, steps_per_update=4 * TURN)
    ends, updates, versions = None, [], []
    for step in range(8):
        trials = run.iterate(lambda trials: updates.append(run.clock))
        mine = [t for t in trials if t.row["id"] == "0z"]
        if mine and ends is None:
            ends, versions = step, mine[0].versions
        ages = [step - v for t in trials for v in t.versions]
        assert max(ages) <= STAGES["trained"].drive.options["max_staleness"] == 4
    assert ends is not None
    before = sum(clock < 40 * TURN for clock in updates)
    assert before >= 3  # the synchronous baseline has made none
    assert len(versions) == 40
    assert len(set(versions)) >= 2
    assert versions == sorted(versions)


def test_the_synchronous_baseline_makes_none(scripted):
    policy = scripted(LONG)
    sampler = Sampler(Engine(policy), policy, Sampling(1.0, 64), 0, 0)
    trials = whole([Ask(row, temperature=0.0) for row in letters("zabcdefghijklmno")], sampler)
    assert policy.model.calls == 40  # the batch is there, and the first update may begin, when the longest has ended
    assert len(trials) == 16


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_no_sample_is_admitted_that_could_become_too_old(scripted, loop, bound):
    policy = scripted(LONG)
    rows = letters("zabcdefghijklmno")
    how = {"max_staleness": bound, "ahead": None, "steps_per_update": 4 * TURN}
    run = loop(STAGES["trained"], policy, rows, num_groups=16, max_steps=6, **how)
    for step in range(6):
        oldest = min(v for t in run.iterate() for v in t.versions)
        assert step - oldest <= bound
