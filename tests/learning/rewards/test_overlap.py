"""Graded scores of answers: numbers worked out by hand."""

import math

import pytest

from learning.rewards import overlap


def row(answer):
    return {"id": "x", "answer": answer}


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


@pytest.mark.parametrize(("text", "score"), [("b a", 1.0), ("x a x", 0.5), ("b b", 0.5), ("", 0.0), ("ab", 0.0)])
def test_share_of_the_references_words_that_occur(text, score):
    assert overlap.recall([row("a b")], [text]) == pytest.approx([score])


@pytest.mark.parametrize(
    ("text", "score"),
    [("a b c d", 1.0), ("a x c d", 3 / 4), ("d c b a", 1 / 4), ("b d", 2 / 3), ("", 0.0), ("x y", 0.0)],
)
def test_longest_common_subsequence(text, score):
    assert overlap.rouge_l([row("a b c d")], [text]) == pytest.approx([score])


@pytest.mark.parametrize("metric", [overlap.f1, overlap.ndcg, overlap.in_order, overlap.recall, overlap.rouge_l])
def test_the_reference_itself_scores_1_and_a_row_without_one_none(metric):
    assert metric([row("a b c"), row(None)], ["a b c", "a"]) == [1.0, None]
