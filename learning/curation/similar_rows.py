"""Rows with nearly the same meaning: their embeddings are compared, and the first of similar rows stays.

Letters: N rows, D numbers of an embedding, B rows of a block, K rows that stay.
"""

from collections.abc import Iterator

import numpy as np

from learning.curation.ledger import Curation
from learning.curation.report import YieldTable
from learning.curation.topics import find_topics
from schemas.stages.curate import SemanticDedup

BLOCK = 1024
"""Rows that are compared together."""
CHUNK = 16_384
"""Rows that stay, with which a block is compared at a time."""
MARGIN = 1e-3
"""Error of cosines in float32, generously: pairs so close to the threshold are computed again in float64."""
NONE = np.empty(0, np.int64)
PIECE = 4096
"""Rows that are dropped at a time."""


def drop_similar(rows: Curation, settings: SemanticDedup, vectors_ND: np.ndarray, table: YieldTable, seed: int) -> None:
    """Drop each row whose cosine with an earlier row that stays reaches the threshold; topics part the rows."""
    numbers_N = np.flatnonzero(rows.mask())
    places = np.arange(len(numbers_N))
    groups = [places]
    if settings.topics is not None and len(places) > settings.topics:
        topic_N = find_topics(vectors_ND, settings.topics, seed)
        groups = [np.flatnonzero(topic_N == topic) for topic in range(settings.topics)]
    dropped: list[tuple[int, int, float]] = []
    for group in groups:
        pairs = find_similar(vectors_ND, group, settings.threshold)
        dropped += [(int(group[a]), int(group[b]), cosine) for a, b, cosine in pairs]
    dropped.sort()
    for start in range(0, len(dropped), PIECE):
        _drop(rows, [(int(numbers_N[a]), int(numbers_N[b]), cosine) for a, b, cosine in dropped[start : start + PIECE]])
    table.add("semantic_dedup")


def find_similar(vectors_ND: np.ndarray, group: np.ndarray, threshold: float) -> Iterator[tuple[int, int, float]]:
    """Yield places in `group` of rows that are similar to an earlier one that stays, with its place and the cosine.

    Rows are looked at in their order; of several similar ones the most similar is named, the first among equals.
    """
    stays_K = np.empty(len(group), np.int64)
    count = 0
    for start in range(0, len(group), BLOCK):
        block_BD = np.asarray(vectors_ND[group[start : start + BLOCK]])
        near = _find_near(block_BD, vectors_ND, group, stays_K[:count], threshold - MARGIN)
        within_BB = block_BD @ block_BD.T >= threshold - MARGIN
        is_kept_B = np.zeros(len(block_BD), bool)
        for b, vector_D in enumerate(block_BD):
            others = np.concatenate([near.get(b, NONE), start + np.flatnonzero(within_BB[b] & is_kept_B)])
            if len(others):
                cosines = np.asarray(vectors_ND[group[others]], np.float64) @ vector_D.astype(np.float64)
                best = int(cosines.argmax())
                if cosines[best] >= threshold:
                    yield start + b, int(others[best]), float(cosines[best])
                    continue
            is_kept_B[b] = True
        kept = start + np.flatnonzero(is_kept_B)
        stays_K[count : count + len(kept)] = kept
        count += len(kept)


def _find_near(
    block_BD: np.ndarray, vectors_ND: np.ndarray, group: np.ndarray, stays_K: np.ndarray, threshold: float
) -> dict[int, np.ndarray]:
    """Return for rows of a block the places of those that stay with a cosine of at least `threshold`."""
    pairs = [np.empty((0, 2), np.int64)]
    for at in range(0, len(stays_K), CHUNK):
        chunk_K = stays_K[at : at + CHUNK]
        rows_X, columns_X = np.nonzero(block_BD @ np.asarray(vectors_ND[group[chunk_K]]).T >= threshold)
        pairs.append(np.stack([rows_X, chunk_K[columns_X]], 1))
    near_X2 = np.concatenate(pairs)
    near_X2 = near_X2[np.argsort(near_X2[:, 0], kind="stable")]
    numbers, starts = np.unique(near_X2[:, 0], return_index=True)
    return dict(zip(numbers.tolist(), np.split(near_X2[:, 1], starts[1:]), strict=True)) if len(numbers) else {}


def _drop(rows: Curation, pairs: list[tuple[int, int, float]]) -> None:
    """Drop rows with the id of the row that each is like."""
    names = rows.names({other for _, other, _ in pairs})
    rows.drop([(row, "similar", f"to {names[other]}, cosine {cosine:.3f}") for row, other, cosine in pairs])
