"""Rows that differ from each other, chosen by their embeddings. Letters: N rows, D numbers of an embedding.

Among equal choices the first row is taken, so that the result depends on the embeddings and the seed alone.
"""

import heapq

import numpy as np

from learning.curation.ledger import Curation
from learning.curation.report import YieldTable
from learning.curation.topics import divide_evenly, find_topics
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.stages.curate import Diversity

BLOCK = 65_536
"""Rows whose cosines are computed at a time."""
MOST_ROWS = 100_000
"""Most rows of `facility_location`, which computes the gain of each at least once: N²·D operations."""


def drop_beyond_diversity(
    rows: Curation, settings: Diversity, vectors_ND: np.ndarray, table: YieldTable, seed: int
) -> list[JsonObject]:
    """Drop all rows but those that cover the others best; return the topics, if there are any."""
    numbers_N = np.flatnonzero(rows.mask())
    count = len(numbers_N)
    total = settings.rows if settings.rows is not None else round((settings.share or 1) * count)
    topics: list[JsonObject] = []
    is_chosen_N = np.zeros(count, bool)
    if total >= count:
        is_chosen_N[:] = True
    elif settings.topics is not None:
        topic_N = find_topics(vectors_ND, min(settings.topics, count), seed)
        is_chosen_N[choose_by_topics(topic_N, total, seed)] = True
        topics = describe_topics(rows, numbers_N, topic_N, is_chosen_N)
    else:
        choose = choose_farthest if settings.method == "farthest_point" else choose_facilities
        is_chosen_N[choose(vectors_ND, total)] = True
    rows.drop_all(numbers_N[~is_chosen_N], "diversity", f"{total} of {count} by {settings.method}")
    table.add("diversity")
    return topics


def choose_farthest(vectors_ND: np.ndarray, total: int) -> list[int]:
    """Return rows in the order of their choice: the first row, then the one farthest from all chosen ones.

    This is the greedy solution of k-center (Gonzalez 1985), within twice the smallest radius.
    """
    chosen = [0]
    nearest_N = compute_cosines(vectors_ND, 0)
    while len(chosen) < total:
        nearest_N[chosen[-1]] = np.inf
        chosen.append(int(nearest_N.argmin()))
        np.maximum(nearest_N, compute_cosines(vectors_ND, chosen[-1]), out=nearest_N)
    return chosen


def choose_facilities(vectors_ND: np.ndarray, total: int) -> list[int]:
    """Return rows in the order of their choice: each raises the sum of similarities to the nearest chosen row most.

    Greedy maximisation of facility location with lazy gains (Minoux 1978); the similarity is (1 + cosine) / 2. Raise
    StepError for more rows than it can compare.
    """
    count = len(vectors_ND)
    if count > MOST_ROWS:
        raise StepError(
            f"diversity: facility_location compares each of {count} rows with all, too slow above {MOST_ROWS}; "
            "use `method: farthest_point` or `topics`, or a `limit` in a stage before"
        )
    sum_D = sum(np.asarray(vectors_ND[at : at + BLOCK], np.float64).sum(0) for at in range(0, count, BLOCK))
    gains = np.concatenate([vectors_ND[at : at + BLOCK] @ sum_D for at in range(0, count, BLOCK)])
    heap = [(-(count + gain) / 2, row, 0) for row, gain in enumerate(gains.tolist())]
    heapq.heapify(heap)
    nearest_N = np.zeros(count)
    chosen: list[int] = []
    while len(chosen) < total:
        _, row, computed_at = heapq.heappop(heap)
        similar_N = (1 + compute_cosines(vectors_ND, row)) / 2
        if computed_at == len(chosen):
            chosen.append(row)
            np.maximum(nearest_N, similar_N, out=nearest_N)
        else:
            gain = float(np.maximum(similar_N - nearest_N, 0).sum())
            heapq.heappush(heap, (-gain, row, len(chosen)))
    return chosen


def compute_cosines(vectors_ND: np.ndarray, row: int) -> np.ndarray:
    """Return the cosines (N,) of all rows with one of them."""
    vector_D = np.asarray(vectors_ND[row], np.float64)
    return np.concatenate([vectors_ND[at : at + BLOCK] @ vector_D for at in range(0, len(vectors_ND), BLOCK)])


def choose_by_topics(topic_N: np.ndarray, total: int, seed: int) -> np.ndarray:
    """Return rows, equally many of each topic, drawn at random."""
    rng = np.random.default_rng(seed)
    sizes_K = np.bincount(topic_N)
    chosen = [
        rng.choice(np.flatnonzero(topic_N == topic), number, replace=False)
        for topic, number in enumerate(divide_evenly(sizes_K, total).tolist())
    ]
    return np.concatenate(chosen)


def describe_topics(
    rows: Curation, numbers_N: np.ndarray, topic_N: np.ndarray, is_chosen_N: np.ndarray
) -> list[JsonObject]:
    """Return for each topic its rows, how many were kept, and the id of its first row, largest topics first."""
    first_K = {int(topic): int(place) for topic, place in zip(*np.unique(topic_N, return_index=True), strict=True)}
    names = rows.names([int(numbers_N[place]) for place in first_K.values()])
    described: list[JsonObject] = [
        {
            "rows": int((topic_N == topic).sum()),
            "kept": int(is_chosen_N[topic_N == topic].sum()),
            "first": names[int(numbers_N[place])],
        }
        for topic, place in first_K.items()
    ]
    return sorted(described, key=lambda topic: -topic["rows"])
