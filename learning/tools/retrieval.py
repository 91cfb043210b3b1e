"""Retrieval of examples by text similarity: cosine of character n-gram counts."""

from collections import Counter
from math import sqrt

from learning.data.rows import Row


class Shelf:
    """Rows to search, indexed by the last message of their prompt."""

    def __init__(self, rows: list[Row], grams: int):
        self.rows, self.grams = rows, grams
        self.texts = [row["prompt"][-1]["content"] for row in rows]
        self.counts = [self._count(text) for text in self.texts]
        self.lengths = [compute_length(counts) for counts in self.counts]

    def nearest(self, text: str, k: int, *, same: bool = False) -> list[Row]:
        """Return the k rows with the largest cosine, most similar first; equal texts only with `same`."""
        counts_of_text = self._count(text)
        size = compute_length(counts_of_text)
        places = [i for i, other in enumerate(self.texts) if same or other != text]
        places.sort(key=lambda i: -compute_cosine(counts_of_text, self.counts[i], size * self.lengths[i]))
        return [self.rows[i] for i in places[:k]]

    def _count(self, text: str) -> Counter[str]:
        return Counter(text[i : i + self.grams] for i in range(max(1, len(text) - self.grams + 1)))


def compute_cosine(left: Counter[str], right: Counter[str], lengths: float) -> float:
    """Return the cosine of two tables of counts, given the product of their lengths; 0 if one is empty."""
    few, many = sorted((left, right), key=len)  # a query may be far longer than the text it is compared with
    dot = sum(count * many[gram] for gram, count in few.items())
    return dot / lengths if lengths else 0.0


def compute_length(counts: Counter[str]) -> float:
    """Return the Euclidean length of a table of counts."""
    return sqrt(sum(c * c for c in counts.values()))
