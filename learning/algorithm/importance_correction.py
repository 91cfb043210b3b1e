"""Factors on the policy loss of every token, for samples of another policy than the one that is updated.

c = π_prox/π_behav compares the policy before this iteration's update with the sampling policy, which differs by stale
weights or another engine's arithmetic. With `ratio: decoupled`, c is the only factor 1/π_behav in the loss; with a
ratio to the sampling policy, use only masks (`reweight: false`, and the functions without that option). A factor of 0
removes the gradient of a token, which still counts in the denominator. An expert's tokens, and tokens without a
log-probability, have c = 1.

Shapes: T sampled tokens; `path_T` is the path of each. Nothing here carries a gradient.
"""

import math
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from learning.batch import token_measures
from learning.batch.columns import any_of_path, mean_of_path, sum_of_path
from schemas.number_schedules import ScheduledFloat

LIMIT = 20.0


def token(
    lp_prox_T: Tensor,
    lp_behav_T: Tensor,
    external_T: Tensor,
    broken_T: Tensor,
    *,
    low: ScheduledFloat = 0.0,
    high: ScheduledFloat = 2.0,
    outside: Literal["truncate", "mask"] = "truncate",
    reweight: bool = True,
) -> Tensor:
    """π_prox/π_behav of each token, capped (TIS, Yao et al. 2025) or 0 outside the bounds (IcePop, Ling Team 2025).

    `reweight: false` gives 1 instead of the ratio, and 0 where it is dropped.
    """
    return _apply_bounds(_compute_log_ratio(lp_prox_T, lp_behav_T, external_T, broken_T), low, high, outside, reweight)


def sequence(
    lp_prox_T: Tensor,
    lp_behav_T: Tensor,
    external_T: Tensor,
    broken_T: Tensor,
    path_T: Tensor,
    *,
    mean: Literal["product", "geometric"] = "product",
    low: ScheduledFloat = 0.0,
    high: ScheduledFloat = 2.0,
    outside: Literal["truncate", "mask"] = "truncate",
    reweight: bool = True,
) -> Tensor:
    """π_prox/π_behav of each completion (product or geometric mean over tokens), capped or 0 outside the bounds.

    A geometric mean stays near 1: bounds such as 0.99 and 1.01 drop completions of a policy that has changed.
    """
    gap_T = _compute_log_ratio(lp_prox_T, lp_behav_T, external_T, broken_T)
    of_path = sum_of_path if mean == "product" else mean_of_path
    return _apply_bounds(of_path(gap_T, path_T), low, high, outside, reweight)


def off_policy(
    lp_prox_T: Tensor,
    lp_behav_T: Tensor,
    external_T: Tensor,
    broken_T: Tensor,
    path_T: Tensor,
    advantage_T: Tensor,
    *,
    limit: ScheduledFloat = 0.1,
) -> Tensor:
    """Off-policy sequence mask: drop if A < 0 and mean log(π_behav/π_prox) > `limit` (DeepSeek-V3.2, 2025, eq. 9)."""
    gap_T = _compute_log_ratio(lp_prox_T, lp_behav_T, external_T, broken_T)
    return (~((advantage_T < 0) & (-mean_of_path(gap_T, path_T) > limit))).double()


def second_moment(
    lp_prox_T: Tensor, lp_behav_T: Tensor, external_T: Tensor, broken_T: Tensor, *, limit: ScheduledFloat = 0.04
) -> Tensor:
    """Drop the tokens of largest (log π_prox/π_behav)² until the mean is ≤ `limit` (M2PO, Zheng et al. 2025, alg. 1).

    The paper drops only tokens whose update moves away from the sampling policy (A and the log-ratio have the same
    sign); here any token may be dropped.
    """
    square_T = _compute_log_ratio(lp_prox_T, lp_behav_T, external_T, broken_T).double().square()
    ordered_T, order = square_T.sort(stable=True)
    mean_T = ordered_T.cumsum(0) / torch.arange(1, len(ordered_T) + 1, device=ordered_T.device)
    return torch.zeros_like(square_T).index_put((order,), (mean_T <= limit).double())


def probability_gap(
    lp_prox_T: Tensor, lp_behav_T: Tensor, external_T: Tensor, broken_T: Tensor, *, limit: ScheduledFloat = 0.2
) -> Tensor:
    """Drop tokens with |π_prox − π_behav| above `limit`: a bound on the total variation.

    Unlike a ratio, this difference is small for rare tokens whose probability has hardly moved.
    """
    gap_T = _compute_log_ratio(lp_prox_T, lp_behav_T, external_T, broken_T)
    return ((lp_prox_T.exp() - (lp_prox_T - gap_T).exp()).abs() <= limit).double()


def variation(
    lp_prox_T: Tensor,
    lp_behav_T: Tensor,
    external_T: Tensor,
    broken_T: Tensor,
    path_T: Tensor,
    *,
    limit: ScheduledFloat = 0.1,
) -> Tensor:
    """Drop completions with a mean |π_prox/π_behav − 1|/2 above `limit`: an estimate of the total variation."""
    gap_T = _compute_log_ratio(lp_prox_T, lp_behav_T, external_T, broken_T)
    return (mean_of_path((gap_T.exp() - 1).abs() / 2, path_T) <= limit).double()


def veto(
    lp_prox_T: Tensor,
    lp_behav_T: Tensor,
    external_T: Tensor,
    broken_T: Tensor,
    path_T: Tensor,
    *,
    low: Annotated[float, Field(ge=0)] = 1e-4,
    high: Annotated[float, Field(gt=0)] = 1e4,
) -> Tensor:
    """Drop a completion if π_prox/π_behav of any token is below `low` or above `high`: its sampling went wrong."""
    ratio_T = _compute_log_ratio(lp_prox_T, lp_behav_T, external_T, broken_T).exp()
    return (~any_of_path((ratio_T < low) | (ratio_T > high), path_T)).double()


def covariance_drop(
    lp_prox_T: Tensor,
    advantage_T: Tensor,
    rng: np.random.Generator,
    *,
    share: Annotated[float, Field(gt=0, le=1)] = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
) -> Tensor:
    """Drop random tokens of high covariance of log-probability and advantage (Clip-Cov, Cui et al. 2025, eq. 11-12).

    max(1, ⌊share·T⌋) tokens, drawn from those whose covariance is between `low` and `high`.
    """
    covariance_T = token_measures.compute_covariance(lp_prox_T, advantage_T)
    candidates = ((covariance_T > low) & (covariance_T < high)).nonzero()[:, 0]
    factor_T = torch.ones_like(covariance_T)
    count = min(len(candidates), max(1, math.floor(share * len(covariance_T) + 1e-9)))
    factor_T[candidates[torch.from_numpy(rng.permutation(len(candidates))[:count])]] = 0.0
    return factor_T


def _compute_log_ratio(lp_prox_T: Tensor, lp_behav_T: Tensor, external_T: Tensor, broken_T: Tensor) -> Tensor:
    """Return log π_prox/π_behav, clamped to ±20; 0 at an expert's tokens and those without a log-probability."""
    return (lp_prox_T - lp_behav_T).masked_fill(external_T.bool() | broken_T.bool(), 0.0).clamp(-LIMIT, LIMIT)


def _apply_bounds(log_T: Tensor, low: float, high: float, outside: str, reweight: bool) -> Tensor:
    ratio_T = log_T.clamp(-LIMIT, LIMIT).exp()
    factor_T = ratio_T.clamp(low, high) if reweight else torch.ones_like(ratio_T)
    if outside == "truncate":
        return factor_T
    return factor_T.where((ratio_T >= low) & (ratio_T <= high), torch.zeros_like(factor_T))
