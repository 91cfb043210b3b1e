"""Surrogates that fit log-ratios to a target instead of following a policy gradient.

Shapes: T sampled tokens; `path_T` is the path of each.
"""

from torch import Tensor

from learning.batch.path_sums import sum_of_later
from schemas.schedules import ScheduledFloat


def mirror(log_ratio_T: Tensor, advantage_T: Tensor, length_T: Tensor, *, tau: ScheduledFloat = 1.0) -> Tensor:
    """−A·S + τ/2·S², S the log-ratio of the completion, spread over its tokens (Kimi k1.5 2025, eq. 3).

    Policy mirror descent: with A = r − mean it regresses τ·S on A. Give it `ratio: sequence_product` and
    `loss_aggregation: {use: constant, length: 1}`.
    """
    return (-advantage_T * log_ratio_T + tau / 2 * log_ratio_T.square()) / length_T


def path_consistent(
    lp_T: Tensor, lp_ref_T: Tensor, advantage_T: Tensor, path_T: Tensor, *, beta: ScheduledFloat = 0.03
) -> Tensor:
    """(V_t − R_t + β·log(π_t/π_ref,t) + β·Σ_{j > t} sg[log(π_j/π_ref,j)])² (OREO, Wang et al. 2024, eq. 9).

    The advantage is R_t − V_t, as the operation `path_consistency` gives it.
    """
    gap_T = lp_T - lp_ref_T
    return (beta * (gap_T + sum_of_later(gap_T.detach(), path_T)) - advantage_T).square()
