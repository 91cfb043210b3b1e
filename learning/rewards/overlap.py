"""Graded rewards: overlap of an answer with the reference, by a metric that suits the kind of question."""

import math
import re
from collections.abc import Callable

from learning.data.rows import Row

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


def in_place(rows: list[Row], completions: list[str], *, separator: str = ";") -> list[float | None]:
    """Share of the reference's parts, between separators, that the text has at the same place; spaces do not count."""

    def compare(answer: str, text: str) -> float:
        right, parts = ([part.strip() for part in one.split(separator)] for one in (answer, text))
        return sum(a == b for a, b in zip(right, parts, strict=False)) / len(right)

    return _score_each(rows, completions, compare)


def iou(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Intersection over union of two intervals `first-last` of integers; 0 for a text that is not an interval."""
    return _score_each(rows, completions, _score_iou)


def recall(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Share of the reference's different words that occur (LongBench Pro's SubEM); None for rows without an answer."""
    return _score_each(rows, completions, _score_recall)


def rouge_l(rows: list[Row], completions: list[str]) -> list[float | None]:
    """ROUGE-L of the words: F1 of the longest common subsequence (Lin 2004); None for rows without an answer."""
    return _score_each(rows, completions, _score_rouge_l)


def _score_each(rows: list[Row], completions: list[str], score: Callable[[str, str], float]) -> list[float | None]:
    pairs = zip(rows, completions, strict=True)
    return [None if row["answer"] is None else score(row["answer"], text) for row, text in pairs]


def _score_recall(answer: str, text: str) -> float:
    right = set(answer.split())
    return len(right & set(text.split())) / len(right) if right else 1.0


def _score_rouge_l(answer: str, text: str) -> float:
    right, words = answer.split(), text.split()
    common = [0] * (len(words) + 1)
    for word in right:
        before = 0
        for i, other in enumerate(words, start=1):
            before, common[i] = common[i], before + 1 if word == other else max(common[i], common[i - 1])
    return 2 * common[-1] / (len(right) + len(words)) if right or words else 1.0


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
    return ordered / len(pairs) if pairs else float(right == words)


def _score_iou(answer: str, text: str) -> float:
    right, predicted = INTERVAL.fullmatch(answer), INTERVAL.fullmatch(text)
    if right is None or predicted is None:
        return 0.0
    (a, b), (c, d) = (int(right[1]), int(right[2])), (int(predicted[1]), int(predicted[2]))
    if a > b or c > d:
        return 0.0
    both = max(min(b, d) - max(a, c) + 1, 0)
    return both / (b - a + 1 + d - c + 1 - both)
