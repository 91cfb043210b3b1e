"""Factors on the surrogate of every token, for samples of another policy than the one that is being updated.

c = π_prox/π_behav compares the policy before this iteration's update with the one that sampled: stale weights, another
engine's arithmetic. With `ratio: decoupled` exactly one 1/π_behav is in the loss, that of c; with a ratio to the
behaviour only masks make sense (`reweight: false`, and those without that option). A factor of 0 takes the gradient
away; the token still counts in the denominator. What an expert wrote, and what has no log-probability, has c = 1.

Shapes: T sampled tokens; `path_T` is the path of each. Nothing here carries a gradient.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from learning.algorithm.token_masks.covariance import covariance_drop
from learning.batch.path_sums import any_of_path, mean_of_path, sum_of_path
from schemas.schedules import ScheduledFloat

__all__ = [
    "covariance_drop",
    "off_policy",
    "probability_gap",
    "second_moment",
    "sequence",
    "token",
    "variation",
    "veto",
]

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
    """c of the token, capped at the bounds (TIS, Yao et al. 2025), or 0 outside them (IcePop, Ling Team 2025).

    `reweight: false` leaves 1 in place of c, and 0 where it is masked.
    """
    return _bounded(_gap(lp_prox_T, lp_behav_T, external_T, broken_T), low, high, outside, reweight)


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
    """c of the whole completion, the product over its tokens or their geometric mean, capped or dropped by the bounds.

    A geometric mean stays near 1: bounds such as 0.99 and 1.01 drop completions of a policy that has moved.
    """
    gap_T = _gap(lp_prox_T, lp_behav_T, external_T, broken_T)
    of_path = sum_of_path if mean == "product" else mean_of_path
    return _bounded(of_path(gap_T, path_T), low, high, outside, reweight)


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
    """Bad completions that the policy has left are dropped: A < 0 and mean of log(π_behav/π_prox) above `limit`.

    The off-policy sequence mask of DeepSeek-V3.2 (2025, eq. 9).
    """
    gap_T = _gap(lp_prox_T, lp_behav_T, external_T, broken_T)
    return (~((advantage_T < 0) & (-mean_of_path(gap_T, path_T) > limit))).double()


def second_moment(
    lp_prox_T: Tensor, lp_behav_T: Tensor, external_T: Tensor, broken_T: Tensor, *, limit: ScheduledFloat = 0.04
) -> Tensor:
    """Drop the largest (log c)² until the mean of the rest is at most `limit` (M2PO, Zheng et al. 2025, alg. 1).

    The paper drops only tokens whose step leads away from the sampler (A and log c of one sign); here all may go.
    """
    square_T = _gap(lp_prox_T, lp_behav_T, external_T, broken_T).double().square()
    ordered_T, order = square_T.sort(stable=True)
    mean_T = ordered_T.cumsum(0) / torch.arange(1, len(ordered_T) + 1, device=ordered_T.device)
    return torch.zeros_like(square_T).index_put((order,), (mean_T <= limit).double())


def probability_gap(
    lp_prox_T: Tensor, lp_behav_T: Tensor, external_T: Tensor, broken_T: Tensor, *, limit: ScheduledFloat = 0.2
) -> Tensor:
    """Drop tokens whose probability differs by more than `limit`: |π_prox − π_behav|, a bound of the total variation.

    A ratio is large for rare tokens although hardly any probability has moved; this is not.
    """
    gap_T = _gap(lp_prox_T, lp_behav_T, external_T, broken_T)
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
    """Drop completions with a mean of |c − 1|/2 above `limit`: an estimate of the total variation of the policies."""
    gap_T = _gap(lp_prox_T, lp_behav_T, external_T, broken_T)
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
    """Drop a completion for one token whose c is below `low` or above `high`: something went wrong in sampling it."""
    ratio_T = _gap(lp_prox_T, lp_behav_T, external_T, broken_T).exp()
    return (~any_of_path((ratio_T < low) | (ratio_T > high), path_T)).double()


def _gap(lp_prox_T: Tensor, lp_behav_T: Tensor, external_T: Tensor, broken_T: Tensor) -> Tensor:
    """log c, held within ±20."""
    return (lp_prox_T - lp_behav_T).masked_fill(external_T.bool() | broken_T.bool(), 0.0).clamp(-LIMIT, LIMIT)


def _bounded(log_T: Tensor, low: float, high: float, outside: str, reweight: bool) -> Tensor:
    ratio_T = log_T.clamp(-LIMIT, LIMIT).exp()
    factor_T = ratio_T.clamp(low, high) if reweight else torch.ones_like(ratio_T)
    if outside == "truncate":
        return factor_T
    return factor_T.where((ratio_T >= low) & (ratio_T <= high), torch.zeros_like(factor_T))
