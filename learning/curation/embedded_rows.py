"""Embeddings of the rows that are left, block by block, on disk. Letters: N rows, R of a block, D numbers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from learning.curation.ledger import Curation
from learning.curation.row_blocks import compute_in_blocks
from learning.data.rows import Row
from learning.lookup import Bound
from schemas.errors import StepError


def embed_rows(
    rows: Curation, embedding: Bound, checkpoints: Path, size: int, on_progress: Callable[[int, int], None]
) -> np.ndarray:
    """Return the embeddings (N, D) of the rows that are left, of length 1 where they are not 0, as a memory map.

    Raise StepError for numbers that are not finite, and for another number of vectors than of rows.
    """
    embed, left = embedding.at(0), rows.kept()

    def compute(block: list[Row]) -> np.ndarray:
        vectors_RD = np.asarray(embed(block), np.float64)
        if vectors_RD.ndim != 2 or len(vectors_RD) != len(block) or not np.isfinite(vectors_RD).all():
            raise StepError(f"embedding {embedding.name}: it must return one vector of finite numbers per row")
        norms_R1 = np.linalg.norm(vectors_RD, axis=1, keepdims=True)
        return (vectors_RD / np.where(norms_R1 > 0, norms_R1, 1)).astype(np.float32)

    return compute_in_blocks(rows, compute, checkpoints / embedding.slot, size, lambda done: on_progress(done, left))
