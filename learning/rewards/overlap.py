"""Graded rewards: how much of the answer is there, by the metric that is natural for the kind of question."""

import math
import re
from collections.abc import Callable
from typing import Any

from schemas.errors import StepError

INTERVAL = re.compile(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*")


def f1(rows: list[dict[str, Any]], completions: list[str]) -> list[float | None]:
    """Harmonic mean of precision and recall of the set of words; None for rows without an answer."""
    return _score_each(rows, completions, _score_f1)


def ndcg(rows: list[dict[str, Any]], completions: list[str]) -> list[float | None]:
    """NDCG of the words in their order: of k right ones the first is worth k, the last 1; a repetition nothing."""
    return _score_each(rows, completions, _score_ndcg)


def in_order(rows: list[dict[str, Any]], completions: list[str]) -> list[float | None]:
    """Share of the answer's pairs of words that come in the answer's order; a word that is missing is in no pair."""
    return _score_each(rows, completions, _score_order)


def iou(rows: list[dict[str, Any]], completions: list[str]) -> list[float | None]:
    """Overlap of two intervals `first-last` of whole numbers over their union; 0 for what is no interval."""
    return _score_each(rows, completions, _score_iou)


def natural(rows: list[dict[str, Any]], completions: list[str]) -> list[float | None]:
    """The metric of the row's family (`learning.toy_tasks.documents`); raises StepError for a family that has none."""
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        if row["family"] not in METRICS:
            raise StepError(
                f"overlap.natural: row {row['id']} is of no kind with a metric; known: {', '.join(METRICS)}"
            )
        scores += _score_each([row], [completion], METRICS[row["family"]])
    return scores


def _score_each(
    rows: list[dict[str, Any]], completions: list[str], score: Callable[[str, str], float]
) -> list[float | None]:
    pairs = zip(rows, completions, strict=True)
    return [None if row["answer"] is None else score(row["answer"], text) for row, text in pairs]


def _score_exact(answer: str, text: str) -> float:
    return float(answer.split() == text.split())


def _score_f1(answer: str, text: str) -> float:
    right, given = set(answer.split()), set(text.split())
    return 2 * len(right & given) / (len(right) + len(given)) if right or given else 1.0


def _score_ndcg(answer: str, text: str) -> float:
    right = answer.split()
    gains = {word: len(right) - i for i, word in enumerate(right)}
    given = list(dict.fromkeys(text.split()))[: len(right)]
    found = sum(gains.get(word, 0) / math.log2(i + 2) for i, word in enumerate(given))
    ideal = sum(gain / math.log2(i + 2) for i, gain in enumerate(gains.values()))
    return found / ideal if ideal else 1.0


def _score_order(answer: str, text: str) -> float:
    right, given = answer.split(), text.split()
    place = {word: i for i, word in reversed(list(enumerate(given)))}
    pairs = [(a, b) for i, a in enumerate(right) for b in right[i + 1 :]]
    kept = sum(a in place and b in place and place[a] < place[b] for a, b in pairs)
    return kept / len(pairs) if pairs else _score_exact(answer, text)


def _score_iou(answer: str, text: str) -> float:
    right, given = INTERVAL.fullmatch(answer), INTERVAL.fullmatch(text)
    if right is None or given is None:
        return 0.0
    (a, b), (c, d) = (int(right[1]), int(right[2])), (int(given[1]), int(given[2]))
    if a > b or c > d:
        return 0.0
    both = max(min(b, d) - max(a, c) + 1, 0)
    return both / (b - a + 1 + d - c + 1 - both)


METRICS: dict[str, Callable[[str, str], float]] = {
    "lookup": _score_exact,
    "total": _score_exact,
    "ranking": _score_ndcg,
    "ordering": _score_order,
    "extraction": _score_iou,
    "listing": _score_f1,
}
