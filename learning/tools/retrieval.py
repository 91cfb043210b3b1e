"""Examples found by how much their text looks like another: counts of runs of characters, compared by their angle."""

from collections import Counter
from math import sqrt
from typing import Any


class Shelf:
    """Rows to look through; the last message of a row's prompt is what it is found by."""

    def __init__(self, rows: list[dict[str, Any]], grams: int):
        self.rows, self.grams = rows, grams
        self.texts = [row["prompt"][-1]["content"] for row in rows]
        self.counts = [self._count(text) for text in self.texts]
        self.lengths = [compute_length(counts) for counts in self.counts]

    def nearest(self, text: str, k: int, *, same: bool = False) -> list[dict[str, Any]]:
        """The k rows with the largest cosine, most similar first; equal texts only with `same`."""
        wanted = self._count(text)
        size = compute_length(wanted)
        places = [i for i, other in enumerate(self.texts) if same or other != text]
        places.sort(key=lambda i: -compute_cosine(wanted, self.counts[i], size * self.lengths[i]))
        return [self.rows[i] for i in places[:k]]

    def _count(self, text: str) -> Counter[str]:
        return Counter(text[i : i + self.grams] for i in range(max(1, len(text) - self.grams + 1)))


def compute_cosine(left: Counter[str], right: Counter[str], lengths: float) -> float:
    """Cosine of two tables of counts, given the product of their lengths; 0 where one is empty."""
    few, many = sorted((left, right), key=len)  # a query may be far longer than what it is compared with
    dot = sum(count * many[gram] for gram, count in few.items())
    return dot / lengths if lengths else 0.0


def compute_length(counts: Counter[str]) -> float:
    """Euclidean length of a table of counts."""
    return sqrt(sum(c * c for c in counts.values()))
