"""Questions over documents, and graded scores of their answers: numbers worked out by hand."""

import math

import pytest

from learning.rewards import overlap
from learning.toy_tasks.documents import QUESTIONS, documents
from schemas.errors import StepError


def row(answer, family="lookup"):
    return {"id": "x", "answer": answer, "family": family}


@pytest.mark.parametrize("kind", sorted(QUESTIONS))
def test_answers_score_1_and_the_sides_share_no_document(kind):
    train = documents(kind=kind, size=20, seed=1, split="train", entries=6)
    test = documents(kind=kind, size=10, seed=1, split="test", entries=6)
    assert overlap.natural(train, [r["answer"] for r in train]) == [1.0] * 20
    assert not {r["prompt"][0]["content"] for r in train} & {r["prompt"][0]["content"] for r in test}
    assert documents(kind=kind, size=20, seed=1, split="train", entries=6) == train


def test_questions_are_about_the_document():
    for made in documents(kind="total", size=5, split="train"):
        text, question = made["prompt"][0]["content"].rsplit("; ", 1)
        values = {name: int(value) for name, value in (entry.split() for entry in text.split(", "))}
        assert made["answer"] == str(sum(values[name] for name in question.rstrip("?").split("+")))
    long = documents(kind="ranking", size=1, split="train", entries=40)[0]["prompt"][0]["content"]
    assert 200 <= len(long) <= 400


def test_too_few_documents_are_refused():
    with pytest.raises(StepError, match="raise `entries`"):
        documents(kind="lookup", size=50, split="test", entries=4, test_share=0.001)
    with pytest.raises(StepError, match="raise `letters`"):
        documents(kind="lookup", size=1, split="test", entries=27, letters=1)


@pytest.mark.parametrize(("text", "score"), [("b a", 1.0), ("a", 2 / 3), ("a c", 0.5), ("", 0.0), ("c d e", 0.0)])
def test_f1(text, score):
    assert overlap.f1([row("a b")], [text]) == pytest.approx([score])


def test_ndcg_discounts_by_place():
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    swapped = 2 + 3 / math.log2(3) + 1 / 2
    late = 3 / math.log2(3)
    for text, score in (("a b c", 1.0), ("b a c", swapped / ideal), ("x a a", late / ideal), ("", 0.0)):
        assert overlap.ndcg([row("a b c")], [text]) == pytest.approx([score])


@pytest.mark.parametrize(
    ("text", "score"), [("a b c", 1.0), ("c b a", 0.0), ("a c b", 2 / 3), ("b c", 1 / 3), ("", 0.0)]
)
def test_share_of_pairs_in_order(text, score):
    assert overlap.in_order([row("a b c")], [text]) == pytest.approx([score])


@pytest.mark.parametrize(
    ("text", "score"), [("3-6", 1.0), ("5-8", 2 / 6), (" 4 - 5 ", 0.5), ("7-9", 0.0), ("6-3", 0.0), ("x", 0.0)]
)
def test_intervals(text, score):
    assert overlap.iou([row("3-6")], [text]) == pytest.approx([score])


def test_each_family_has_its_metric_and_what_cannot_be_scored_is_none():
    rows = [row("a b", "listing"), row("a b", "lookup"), row(None, "ranking")]
    assert overlap.natural(rows, ["a", "a", "a"]) == [pytest.approx(2 / 3), 0.0, None]
    with pytest.raises(StepError, match="has no metric"):
        overlap.natural([row("a", "sudoku")], ["a"])
