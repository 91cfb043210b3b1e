"""Graded rewards: overlap of an answer with the reference, by a metric that suits the kind of question."""

import math
import re
from collections.abc import Callable

from learning.data.rows import Row
from schemas.errors import StepError

INTERVAL = re.compile(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*")


def f1(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Harmonic mean of precision and recall of the set of words; None for rows without an answer."""
    return _score_each(rows, completions, _score_f1)


def ndcg(rows: list[Row], completions: list[str]) -> list[float | None]:
    """NDCG of the words in their order: of k right words the first has gain k, the last 1, a repetition 0."""
    return _score_each(rows, completions, _score_ndcg)


def in_order(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Share of the reference's pairs of words that are in the right order; missing words are in no pair."""
    return _score_each(rows, completions, _score_order)


def iou(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Intersection over union of two intervals `first-last` of integers; 0 for a text that is not an interval."""
    return _score_each(rows, completions, _score_iou)


def natural(rows: list[Row], completions: list[str]) -> list[float | None]:
    """The metric of the row's family (`learning.toy_tasks.documents`); raise StepError for a family without one."""
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        if row["family"] not in METRICS:
            raise StepError(
                f"reward overlap.natural: the family of row {row['id']} has no metric; "
                f"families with one: {', '.join(METRICS)}"
            )
        scores += _score_each([row], [completion], METRICS[row["family"]])
    return scores


def _score_each(rows: list[Row], completions: list[str], score: Callable[[str, str], float]) -> list[float | None]:
    pairs = zip(rows, completions, strict=True)
    return [None if row["answer"] is None else score(row["answer"], text) for row, text in pairs]


def _score_exact(answer: str, text: str) -> float:
    return float(answer.split() == text.split())


def _score_f1(answer: str, text: str) -> float:
    right, words = set(answer.split()), set(text.split())
    return 2 * len(right & words) / (len(right) + len(words)) if right or words else 1.0


def _score_ndcg(answer: str, text: str) -> float:
    right = answer.split()
    gains = {word: len(right) - i for i, word in enumerate(right)}
    words = list(dict.fromkeys(text.split()))[: len(right)]
    total = sum(gains.get(word, 0) / math.log2(i + 2) for i, word in enumerate(words))
    ideal = sum(gain / math.log2(i + 2) for i, gain in enumerate(gains.values()))
    return total / ideal if ideal else 1.0


def _score_order(answer: str, text: str) -> float:
    right, words = answer.split(), text.split()
    place = {word: i for i, word in reversed(list(enumerate(words)))}
    pairs = [(a, b) for i, a in enumerate(right) for b in right[i + 1 :]]
    ordered = sum(a in place and b in place and place[a] < place[b] for a, b in pairs)
    return ordered / len(pairs) if pairs else _score_exact(answer, text)


def _score_iou(answer: str, text: str) -> float:
    right, predicted = INTERVAL.fullmatch(answer), INTERVAL.fullmatch(text)
    if right is None or predicted is None:
        return 0.0
    (a, b), (c, d) = (int(right[1]), int(right[2])), (int(predicted[1]), int(predicted[2]))
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
