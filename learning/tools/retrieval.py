"""Retrieval of texts: by the cosine of their counts of character n-grams, or by the words of a query (BM25)."""

import re
from collections import Counter
from collections.abc import Sequence
from math import log, sqrt

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


class Index:
    """Texts to search by whole words: Okapi BM25 with the usual constants (Robertson & Zaragoza 2009, eq. 3.15)."""

    def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        self.texts, self.k1, self.b = list(texts), k1, b
        self.counts = [Counter(_split(text)) for text in texts]
        self.lengths = [sum(counts.values()) for counts in self.counts]
        self.mean = sum(self.lengths) / max(len(texts), 1)
        self.holding = Counter(word for counts in self.counts for word in counts)

    def rank(self, query: str, k: int) -> list[str]:
        """Return the k texts with the highest scores, best first and equal ones in order; none without a word of it."""
        scores = [self.score(query, i) for i in range(len(self.texts))]
        places = sorted((i for i, score in enumerate(scores) if score > 0), key=lambda i: -scores[i])
        return [self.texts[i] for i in places[:k]]

    def score(self, query: str, place: int) -> float:
        """Return the score of a text; a word counts ln(1 + (N − n + ½)/(n + ½)), n of N texts have it."""
        counts, norm = self.counts[place], 1 - self.b + self.b * self.lengths[place] / (self.mean or 1.0)
        total = 0.0
        for word in _split(query):
            n = self.holding[word]
            rarity = log(1 + (len(self.texts) - n + 0.5) / (n + 0.5))
            total += rarity * counts[word] * (self.k1 + 1) / (counts[word] + self.k1 * norm)
        return total


def _split(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def compute_cosine(left: Counter[str], right: Counter[str], lengths: float) -> float:
    """Return the cosine of two tables of counts, given the product of their lengths; 0 if one is empty."""
    few, many = sorted((left, right), key=len)  # a query may be far longer than the text it is compared with
    dot = sum(count * many[gram] for gram, count in few.items())
    return dot / lengths if lengths else 0.0


def compute_length(counts: Counter[str]) -> float:
    """Return the Euclidean length of a table of counts."""
    return sqrt(sum(c * c for c in counts.values()))
