"""What a set of policies is worth that trade objectives off: the volume it dominates, its best weighted sum.

Shapes: M policies, K objectives.
"""

from collections.abc import Sequence

import numpy as np


def compute_hypervolume(point_MK: np.ndarray, reference_K: Sequence[float]) -> float:
    """Return the volume of what is above the reference and below a point in all objectives; exact, by slices.

    Points that are not above the reference in every objective add nothing (Zitzler and Thiele 1998).
    """
    base_K = np.asarray(reference_K, float)
    above_MK = np.asarray(point_MK, float) - base_K
    above_MK = above_MK[(above_MK > 0).all(1)]
    if not len(above_MK):
        return 0.0
    if above_MK.shape[1] == 1:
        return float(above_MK.max())
    ranked_MK = above_MK[(-above_MK[:, -1]).argsort(kind="stable")]
    lower_M = np.append(ranked_MK[1:, -1], 0.0)
    rest = [0.0] * (above_MK.shape[1] - 1)
    return sum(
        float(top - below) * compute_hypervolume(ranked_MK[: place + 1, :-1], rest)
        for place, (top, below) in enumerate(zip(ranked_MK[:, -1], lower_M, strict=True))
        if top > below
    )
