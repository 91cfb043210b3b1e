"""Slot weight_diff: how a tensor moved between two models.

A measure is given the same tensor before and after, in float64, and returns one number; NaN where it says nothing of
this tensor (a spectrum needs a matrix). The number of a model is the mean over its tensors, each counting with its
entries. Letters: U left singular vectors, s singular values, k leading directions.
"""

from collections.abc import Callable, Mapping
from math import degrees, nan
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.data.rows import Row
from schemas.errors import StepError

Rank = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


def nss(before: Tensor, after: Tensor) -> float:
    """Normalised spectral shift: ‖s(W₁) − s(W₀)‖ / ‖s(W₀)‖ (The Path Not Taken, 2025, arXiv:2511.08567)."""
    if before.ndim != 2:
        return nan
    old, new = torch.linalg.svdvals(before), torch.linalg.svdvals(after)
    return float((new - old).norm() / old.norm()) if old.norm() > 0 else nan


def principal_angle(before: Tensor, after: Tensor, *, k: Rank = 1, side: Literal["left", "right"] = "left") -> float:
    """Largest angle in degrees between the spaces of the k leading singular vectors of both (same paper)."""
    if before.ndim != 2 or min(before.shape) < k:
        return nan
    if side == "right":
        before, after = before.T, after.T
    old, new = (torch.linalg.svd(w, full_matrices=False).U[:, :k] for w in (before, after))
    # From the sine: the cosine of a small angle has lost it to rounding.
    away = torch.linalg.matrix_norm(new - old @ (old.T @ new), 2).clamp(max=1)
    return degrees(float(torch.asin(away)))


def principal_mask_overlap(
    before: Tensor, after: Tensor, *, k: Rank = 8, share: Share = 0.1, tolerance: float = 1e-3
) -> float:
    """Share of the changed entries that lie among the principal ones; `share` would be chance (same paper).

    Principal are the `share` of entries that are largest in the best approximation of rank k of the tensor before.
    """
    changed = ~unchanged(before, after, tolerance)
    if before.ndim != 2 or not changed.any():
        return nan
    u, s, vh = torch.linalg.svd(before, full_matrices=False)
    size = ((u[:, :k] * s[:k]) @ vh[:k]).abs()
    count = max(1, int(share * size.numel()))
    principal = torch.zeros(size.numel(), dtype=torch.bool)
    principal[size.flatten().argsort(descending=True, stable=True)[:count]] = True
    return float((changed.flatten() & principal).sum() / changed.sum())


def bf16_sparsity(before: Tensor, after: Tensor, *, tolerance: float = 1e-3) -> float:
    """Share of entries that bfloat16 shows as unchanged: |a − b| ≤ tolerance · max(|a|, |b|) (same paper)."""
    return float(unchanged(before, after, tolerance).double().mean())


def unchanged(before: Tensor, after: Tensor, tolerance: float) -> Tensor:
    """Entries whose change is within a relative tolerance."""
    return (after - before).abs() <= tolerance * torch.maximum(before.abs(), after.abs())


def measure_weights(
    model: str,
    against: str,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    measures: Mapping[str, Callable],
) -> list[Row]:
    """One line per measure: model, against, measure, value (null where it says nothing), tensors that it spoke of.

    Raises StepError when the models differ in their tensors.
    """
    strange = sorted(set(before) ^ set(after)) or [n for n in sorted(before) if before[n].shape != after[n].shape]
    if strange:
        raise StepError(
            f"weight_diff: {model} and {against} differ in tensor {strange[0]}; compare models of one shape"
        )
    sums = {name: [0.0, 0, 0] for name in measures}
    for tensor in sorted(before):
        if not before[tensor].is_floating_point():
            continue
        pair = before[tensor].double(), after[tensor].double()
        for name, measure in measures.items():
            value, entries = float(measure(*pair)), before[tensor].numel()
            if value == value:  # not NaN
                sum_ = sums[name]
                sums[name] = [sum_[0] + value * entries, sum_[1] + entries, sum_[2] + 1]
    return [
        {"model": model, "against": against, "measure": name, "value": s / n if n else None, "tensors": count}
        for name, (s, n, count) in sums.items()
    ]
