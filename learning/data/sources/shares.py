"""Whole numbers in proportion to shares."""

import numpy as np


def divide(shares: np.ndarray, total: int) -> list[int]:
    """Return whole numbers with a given sum in proportion to shares, by largest remainders, of equals the first."""
    exact = shares / shares.sum() * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts.tolist()


def choose_index_type(count: int) -> type[np.integer]:
    """Return the smaller type that numbers `count` rows: 4 bytes per row in place of 8, up to 4 billion rows."""
    return np.uint32 if count <= 2**32 else np.int64
