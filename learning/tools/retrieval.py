"""Retrieval of texts: by the cosine of their counts of character n-grams, or by the words of a query (BM25)."""

import re
from collections import Counter
from collections.abc import Container, Sequence
from math import sqrt
from typing import Any

import numpy as np

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
    """Texts to search by whole words, whatever their case: Okapi BM25 by the library bm25s, with the usual constants.

    A word counts ln(1 + (N − n + ½)/(n + ½)) where n of N texts have it (Robertson & Zaragoza 2009).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        import bm25s  # most processes search nothing

        self.texts = list(texts)
        words = [split_words(text) for text in texts]
        self.library: Any = bm25s.BM25(method="lucene", k1=1.2, b=0.75, dtype="float64")
        self.known: Container[str] = ()
        """Words that a text has; the library divides by their mean number."""
        if any(words):
            self.library.index(words, show_progress=False)
            self.known = self.library.vocab_dict

    def rank(self, query: str, k: int) -> list[int]:
        """Return the places of up to k texts that have a word of the query, the best first and equal ones in order."""
        score_N = self.score(query)
        found_M = np.flatnonzero(score_N > 0)
        return found_M[np.argsort(-score_N[found_M], kind="stable")[:k]].tolist()

    def score(self, query: str) -> np.ndarray:
        """Return the scores of all texts, (N,)."""
        words = [word for word in split_words(query) if word in self.known]
        return self.library.get_scores(words) if words else np.zeros(len(self.texts))


def split_words(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return re.findall(r"\w+", text.casefold())


def compute_cosine(left: Counter[str], right: Counter[str], lengths: float) -> float:
    """Return the cosine of two tables of counts, given the product of their lengths; 0 if one is empty."""
    few, many = sorted((left, right), key=len)  # a query may be far longer than the text it is compared with
    dot = sum(count * many[gram] for gram, count in few.items())
    return dot / lengths if lengths else 0.0


def compute_length(counts: Counter[str]) -> float:
    """Return the Euclidean length of a table of counts."""
    return sqrt(sum(c * c for c in counts.values()))
