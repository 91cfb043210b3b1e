"""Ways to merge models. The `merge_method` of a recipe is the name of a function here.

A method makes one tensor out of the same tensor of K models. What stands before the star is supplied by name: `tensors`
(K tensors of one shape and precision), `base` (the base model's; a method that takes it gets the other models in
`tensors`), `seed` (of this tensor) and `totals`: what `<method>_totals` beside it says of every tensor, added up over
the whole model before the first is merged. If `tensors` is annotated `list[Blocks]`, tensors stay in their files and
are read block by block (`learning.merge.blocks`); otherwise they are in memory. What stands after the star are
mergekit's parameters: a `list` holds one value per model of `tensors`, anything else is one value for the tensor.
`lambda` is written `lambda_`. The result has the precision of `tensors`; the arithmetic is one precision wider.
"""

import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from learning.merge.blocks import Blocks, apply_blockwise, find_kth_magnitude, iterate_blocks
from schemas.errors import StepError

PARALLEL = 0.9995
"""Cosine beyond which two directions count as one, and the arc as its chord."""
Keep = Callable[[int, Tensor], Tensor]
"""(model, its block of differences) → the block with the dropped ones zero."""


def linear(tensors: list[Blocks], *, weight: list, normalize: bool = True) -> Tensor:
    """Weighted average: Σ wᵏ θᵏ, over Σ wᵏ where `normalize` is set (model soups, Wortsman et al. 2022)."""
    scale = 1.0 / _divisor(weight) if normalize else 1.0
    return apply_blockwise(lambda *parts_K: _weighted(list(parts_K), [w * scale for w in weight]), tensors)


def slerp(tensors: list[Blocks], base: Blocks, *, t: float) -> Tensor:
    """Along the arc from the base (t = 0) to the one other model (t = 1) (Shoemake 1985).

    With the angle φ between the flattened tensors: sin((1−t)φ)/sin φ · base + sin(tφ)/sin φ · other; a straight line
    where |cos φ| > 0.9995 or one of them is zero.
    """
    if len(tensors) != 1:
        raise StepError(f"merge_method slerp: needs base_model and one other model, not {len(tensors)} others")
    dot = squared_base = squared_other = 0.0
    for _, (start, end) in iterate_blocks([base, tensors[0]]):
        a, b = start.numpy(), end.numpy()
        dot += float(np.sum(a * b, dtype=np.float64))
        squared_base += float(np.sum(a * a, dtype=np.float64))
        squared_other += float(np.sum(b * b, dtype=np.float64))
    norms = math.sqrt(squared_base) * math.sqrt(squared_other)
    cosine = max(-1.0, min(1.0, dot / norms)) if norms > 0 else 1.0
    if abs(cosine) > PARALLEL:
        return apply_blockwise(lambda start, end: _weighted([start, end], [1 - t, t]), [base, tensors[0]])
    angle = math.acos(cosine)
    weights = [math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)]
    return apply_blockwise(lambda start, end: _weighted([start, end], weights), [base, tensors[0]])


def task_arithmetic(
    tensors: list[Blocks], base: Blocks, *, weight: list, normalize: bool = False, lambda_: float = 1.0
) -> Tensor:
    """Base plus the weighted sum of differences to it: base + λ Σ wᵏ(θᵏ − base) (Ilharco et al. 2022)."""
    return _sum_of_differences(tensors, base, weight, lambda k, delta: delta, normalize, lambda_)


def ties(
    tensors: list[Blocks],
    base: Blocks,
    *,
    weight: list,
    density: list | None = None,
    normalize: bool = True,
    lambda_: float = 1.0,
) -> Tensor:
    """Trim, elect sign, disjoint mean (TIES, Yadav et al. 2023).

    Of each model's n differences the ⌊density·n⌋ largest by magnitude stay, and so do those equal to the smallest of
    them: the result does not hang on the order of entries. The sign of an entry is that of Σ wᵏ δᵏ (+ for zero, within
    rounding); models of that sign are averaged with their weights (`normalize`) or summed.
    """
    thresholds = [_threshold(x, base, d) for x, d in zip(tensors, _densities(density, len(tensors)), strict=True)]

    def keep(k: int, delta: Tensor) -> Tensor:
        return delta if thresholds[k] <= 0 else delta * (delta.abs() >= thresholds[k])

    return _disjoint_mean(tensors, base, weight, keep, normalize, lambda_)


def dare_linear(
    tensors: list[Blocks],
    base: Blocks,
    seed: int,
    *,
    weight: list,
    density: list | None = None,
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
) -> Tensor:
    """Task arithmetic on differences dropped at random, the kept share `density` divided by it (Yu et al. 2023)."""
    keep = _random_keep(_densities(density, len(tensors)), seed, rescale)
    return _sum_of_differences(tensors, base, weight, keep, normalize, lambda_)


def dare_ties(
    tensors: list[Blocks],
    base: Blocks,
    seed: int,
    *,
    weight: list,
    density: list | None = None,
    normalize: bool = False,
    rescale: bool = True,
    lambda_: float = 1.0,
) -> Tensor:
    """TIES with DARE's random drop in the place of the trim (Yu et al. 2023)."""
    keep = _random_keep(_densities(density, len(tensors)), seed, rescale)
    return _disjoint_mean(tensors, base, weight, keep, normalize, lambda_)


def passthrough(tensors: list[Tensor], *, scale: list | None = None) -> Tensor:
    """The tensor of the only model, times `scale`: for stacking layers of several models with `slices`."""
    if len(tensors) != 1:
        raise StepError(f"merge_method passthrough: needs one model per slice, not {len(tensors)}")
    return tensors[0] if scale is None else apply_blockwise(lambda block: block * scale[0], tensors)


def ram(
    tensors: list[Blocks], base: Blocks, *, epsilon: Annotated[float, Field(ge=0)] = 1e-5, lambda_: float = 1.0
) -> Tensor:
    """Keep what one model alone changed, average what several did (RAM, Reinforced Agent Merging, Yuan et al. 2026).

    A difference counts as a change when it is larger than `epsilon`. The mean is over the models that changed the
    entry, so that nothing is diluted by those that left it alone.
    """
    return _kept_and_shared(tensors, base, epsilon, [lambda_] * len(tensors), lambda_)


def ram_plus(
    tensors: list[Blocks],
    base: Blocks,
    totals: list[float],
    *,
    r: Annotated[float, Field(ge=1)] = 1.2,
    epsilon: Annotated[float, Field(ge=0)] = 1e-5,
    lambda_: float = 1.0,
) -> Tensor:
    """RAM with what one model alone changed scaled up, the more the larger its share of shared changes (RAM+).

    The factor of model k is 1 + (r − 1) · min(1, shared_k / unique_k), both counted over the whole model; 1 for a model
    without changes, r for one whose changes are all shared.
    """
    shared_K, unique_K = totals[::2], totals[1::2]
    ratios = [min(1.0, s / u) if u else float(s > 0) for s, u in zip(shared_K, unique_K, strict=True)]
    return _kept_and_shared(tensors, base, epsilon, [lambda_ * (1 + (r - 1) * ratio) for ratio in ratios], lambda_)


def ram_plus_totals(base: Blocks, tensors: list[Blocks], *, epsilon: float = 1e-5) -> list[float]:
    """Shared and unique changes of each model in turn: [shared_0, unique_0, shared_1, …]."""
    counts = torch.zeros(len(tensors), 2, dtype=torch.float64)
    for _, (origin, *parts_K) in iterate_blocks([base, *tensors]):
        changed_K = [(part - origin).abs() > epsilon for part in parts_K]
        several = torch.stack(changed_K).sum(0) > 1
        for k, changed in enumerate(changed_K):
            counts[k] += torch.stack([(changed & several).sum(), (changed & ~several).sum()])
    return counts.flatten().tolist()


def _kept_and_shared(
    tensors: list[Blocks], base: Blocks, epsilon: float, scales_K: list[float], lambda_: float
) -> Tensor:
    """Base plus each model's own changes times its scale, plus λ times the mean of those that are shared."""

    def rule(origin: Tensor, *parts_K: Tensor) -> Tensor:
        deltas_K = [part - origin for part in parts_K]
        changed_K = [delta.abs() > epsilon for delta in deltas_K]
        count = torch.stack(changed_K).sum(0, dtype=origin.dtype)
        total = origin.clone()
        for delta, changed, scale in zip(deltas_K, changed_K, scales_K, strict=True):
            factor = torch.where(count > 1, lambda_ / count.clamp(min=1), scale)
            total.add_(delta * changed * factor)
        return total

    return apply_blockwise(rule, [base, *tensors])


def _weighted(parts_K: list[Tensor], weights_K: list[float]) -> Tensor:
    total = parts_K[0] * weights_K[0]
    for part, weight in zip(parts_K[1:], weights_K[1:], strict=True):
        total.add_(part, alpha=weight)
    return total


def _divisor(weight: list) -> float:
    total = sum(weight)
    if abs(total) < 1e-8:
        raise StepError("merge: the weights sum to zero; set other weights, or normalize: false")
    return total


def _densities(density: list | None, num_models: int) -> list[float]:
    """Return the density of each model; 1 where none is given, as in mergekit."""
    densities = [1.0 if value is None else value for value in density or [None] * num_models]
    for value in densities:
        if not 0 < value <= 1:
            raise StepError(f"merge: density must be above 0 and at most 1, got {value}")
    return densities


def _threshold(tensor: Blocks, base: Blocks, density: float) -> float:
    """Magnitude from which differences stay; 0 keeps all, infinity none."""
    k = int(density * tensor.numel())
    if k >= tensor.numel():
        return 0.0
    return find_kth_magnitude(tensor, base, k) if k else math.inf


def _random_keep(densities: list[float], seed: int, rescale: bool) -> Keep:
    """Keep each difference with its model's density; each model draws from a generator of its own."""
    generators = [torch.Generator().manual_seed((seed + 0x9E3779B97F4A7C15 * k) % 2**63) for k in range(len(densities))]

    def keep(k: int, delta: Tensor) -> Tensor:
        mask = torch.rand(delta.shape, generator=generators[k]) < densities[k]
        return delta * mask / (densities[k] if rescale else 1.0)

    return keep


def _sum_of_differences(
    tensors: list[Blocks], base: Blocks, weight: list, keep: Keep, normalize: bool, lambda_: float
) -> Tensor:
    scale = lambda_ / (_divisor(weight) if normalize else 1.0)

    def rule(origin: Tensor, *parts_K: Tensor) -> Tensor:
        total = origin.clone()
        for k, part in enumerate(parts_K):
            total.add_(keep(k, part - origin), alpha=weight[k] * scale)
        return total

    return apply_blockwise(rule, [base, *tensors])


def _disjoint_mean(
    tensors: list[Blocks], base: Blocks, weight: list, keep: Keep, normalize: bool, lambda_: float
) -> Tensor:
    def rule(origin: Tensor, *parts_K: Tensor) -> Tensor:
        deltas_K = [keep(k, part - origin).mul_(weight[k]) for k, part in enumerate(parts_K)]
        elected = _elect_sign(deltas_K)
        total, mass = torch.zeros_like(origin), torch.zeros_like(origin)
        for k, delta in enumerate(deltas_K):
            agrees = delta * elected > 0
            total.add_(delta.mul_(agrees))
            mass.add_(agrees, alpha=weight[k])
        if normalize:
            total.div_(mass.masked_fill_(mass.abs() < 1e-8, 1.0))
        return origin.add(total, alpha=lambda_)

    return apply_blockwise(rule, [base, *tensors])


def _elect_sign(deltas_K: list[Tensor]) -> Tensor:
    """Return the sign (1 or −1) of the sum of weighted differences; sums within rounding of zero count as zero: 1.

    Differences of bfloat16 weights are multiples of few steps, so that sums such as 0.6·2 − 0.4·3 are common.
    """
    total, size = torch.zeros_like(deltas_K[0]), torch.zeros_like(deltas_K[0])
    for delta in deltas_K:
        total.add_(delta)
        size.add_(delta.abs())
    return torch.where(total >= -8 * torch.finfo(total.dtype).eps * size, 1.0, -1.0).to(total.dtype)
