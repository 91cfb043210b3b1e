"""Topics: clusters of rows by their embeddings. Letters: N rows, D numbers of an embedding, K topics."""

import numpy as np

FIT_ROWS = 50_000
"""Rows, drawn at random, from which the centres are computed; all rows are then assigned."""
BLOCK = 16_384
"""Rows that are assigned at a time."""


def find_topics(vectors_ND: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the topic (N,) of each row, by k-means over embeddings of length 1 (spherical up to its means)."""
    from sklearn.cluster import KMeans  # imported here because it takes a second, and few curations use it

    rng = np.random.default_rng(seed)
    chosen = np.arange(len(vectors_ND))
    if len(chosen) > FIT_ROWS:
        chosen = np.sort(rng.choice(len(vectors_ND), FIT_ROWS, replace=False))
    means = KMeans(count, n_init="auto", random_state=seed).fit(np.asarray(vectors_ND[chosen]))
    blocks = (np.asarray(vectors_ND[at : at + BLOCK]) for at in range(0, len(vectors_ND), BLOCK))
    return np.concatenate([means.predict(block) for block in blocks])


def divide_evenly(sizes_K: np.ndarray, total: int) -> np.ndarray:
    """Return how many rows of each topic are chosen: equally many, where topics have so many, and `total` in all.

    What cannot be divided goes to the first topics. Raise ValueError if the topics have fewer rows than `total`.
    """
    if total > sizes_K.sum():
        raise ValueError(f"{total} of {sizes_K.sum()} rows")
    chosen_K = np.zeros_like(sizes_K)
    while left := total - int(chosen_K.sum()):
        open_X = np.flatnonzero(chosen_K < sizes_K)
        if left < len(open_X):
            chosen_K[open_X[:left]] += 1
        else:
            chosen_K[open_X] += np.minimum(left // len(open_X), sizes_K[open_X] - chosen_K[open_X])
    return chosen_K
