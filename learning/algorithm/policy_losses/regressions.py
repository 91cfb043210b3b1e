"""Policy losses that regress log-ratios on a target instead of following a policy gradient.

Shapes: T sampled tokens; `path_T` is the path of each.
"""

import torch
from torch import Tensor

from learning.batch.columns import sum_of_later
from schemas.number_schedules import ScheduledFloat


def mirror(log_ratio_T: Tensor, advantage_T: Tensor, length_T: Tensor, *, tau: ScheduledFloat = 1.0) -> Tensor:
    """Policy mirror descent: −A·S + τ/2·S², S the log-ratio of the completion (Kimi k1.5 2025, eq. 3).

    With A = r − mean it regresses τ·S on A; the loss is spread over the completion's tokens. Use it with
    `ratio: sequence_product` and `loss_aggregation: {use: constant, length: 1}`.
    """
    return (-advantage_T * log_ratio_T + tau / 2 * log_ratio_T.square()) / length_T


def path_consistent(
    lp_T: Tensor, lp_ref_T: Tensor, advantage_T: Tensor, path_T: Tensor, *, beta: ScheduledFloat = 0.03
) -> Tensor:
    """Path consistency: (V_t − R_t + β·log(π_t/π_ref,t) + β·Σ_{j > t} sg[log(π_j/π_ref,j)])² (OREO, Wang et al. 2024).

    Equation 9 of the paper. The advantage must be R_t − V_t, which the operation `path_consistency` computes.
    """
    gap_T = lp_T - lp_ref_T
    return (beta * (gap_T + sum_of_later(gap_T.detach(), path_T)) - advantage_T).square()


def direct_advantage(
    lp_T: Tensor, lp_ref_T: Tensor, advantage_T: Tensor, path_T: Tensor, turn_T: Tensor, *, beta: ScheduledFloat = 0.5
) -> Tensor:
    """½·(β·log(π/π_ref) − A)² of a turn, at each of its tokens (DAPO, Liu et al. 2024, arXiv:2412.18279).

    The log-ratio is that of the whole turn, a step of a solution; a completion without turns is one. All tokens of a
    turn have its loss, so that `loss_aggregation: turn_mean` is the mean over turns. It needs no log-probabilities of a
    sampling policy: use it offline, with `rollout: recorded`.
    """
    index_T = torch.stack([path_T, turn_T]).unique(dim=1, return_inverse=True)[1]
    gap_T = lp_T - lp_ref_T.to(lp_T)
    sum_S = gap_T.new_zeros(int(index_T.max()) + 1 if len(index_T) else 0).index_add(0, index_T, gap_T)
    return (beta * sum_S[index_T] - advantage_T).square() / 2
