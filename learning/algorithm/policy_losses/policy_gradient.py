"""Per-token policy-gradient losses from the log-ratio and the advantage; lower is better.

A log-ratio is clamped to ±20 before it is exponentiated, so that no sample can give an infinite loss.
Shapes: T sampled tokens.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from learning.batch.columns import mean_of_path
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat

LIMIT = 20.0


def clipped(
    log_ratio_T: Tensor,
    advantage_T: Tensor,
    *,
    epsilon: ScheduledFloat = 0.2,
    epsilon_high: ScheduledFloat | None = None,
    delta: ScheduledFloat | None = None,
) -> Tensor:
    """PPO's clipped loss: −min(ρA, clip(ρ, 1−ε, 1+ε_high)·A) (Schulman et al. 2017, eq. 7).

    `epsilon_high` widens the upper bound (DAPO, Yu et al. 2025, eq. 10; null: ε); `delta` > 1 bounds the loss of
    negative advantages to −δA (dual clip, Ye et al. 2020).
    """
    ratio_T = log_ratio_T.clamp(-LIMIT, LIMIT).exp()
    high = epsilon if epsilon_high is None else epsilon_high
    loss_T = -(ratio_T * advantage_T).minimum(ratio_T.clamp(1 - epsilon, 1 + high) * advantage_T)
    if delta is None:
        return loss_T
    return loss_T.where(advantage_T >= 0, loss_T.minimum(-delta * advantage_T))


def clipped_around_proximal(
    log_ratio_T: Tensor, advantage_T: Tensor, lp_prox_T: Tensor, lp_behav_T: Tensor, *, epsilon: ScheduledFloat = 0.2
) -> Tensor:
    """PPO's clipped loss in the range c ± ε, c = π_k/π_behav (GePPO, Queeney et al. 2021; ReMix, Liang et al. 2025).

    π_k is the policy before the update, π_behav the one that sampled the token: for own tokens c is 1, for stored ones
    it is their ratio before the update, so that the change of this update alone is bounded. Use it with `ratio: token`.
    """
    ratio_T = log_ratio_T.clamp(-LIMIT, LIMIT).exp()
    center_T = (lp_prox_T - lp_behav_T).clamp(-LIMIT, LIMIT).exp()
    bounded_T = ratio_T.maximum(center_T - epsilon).minimum(center_T + epsilon)
    return -(ratio_T * advantage_T).minimum(bounded_T * advantage_T)


def widened_by_entropy(
    log_ratio_T: Tensor,
    advantage_T: Tensor,
    entropy_behav_T: Tensor,
    path_T: Tensor,
    scores_P: Mapping[str, Tensor],
    *,
    score: str = "features.entropy",
    epsilon: ScheduledFloat = 0.2,
    epsilon_high: ScheduledFloat = 0.4,
    full: Annotated[float, Field(gt=0)] = 1.0,
) -> Tensor:
    """PPO's clipped loss whose upper bound grows with the entropy of a completion (EAG-RL, Fang et al. 2025).

    It is 1 + ε + (ε_high − ε)·min(H/`full`, 1); the lower one is 1 − ε. H, in nats, is the raw score `score` of the
    completion: the mean entropy at the tokens that matter. Where there is none, H is the mean over all its tokens.
    Raise StepError if the stage has no such reward.
    """
    if score not in scores_P:
        raise StepError(
            f"policy_loss widened_by_entropy: no reward {score!r}; the stage has: {', '.join(scores_P)}. Add it with "
            "`weight: 0.0`"
        )
    marked_T = scores_P[score].to(log_ratio_T)[path_T]
    entropy_T = torch.where(marked_T.isnan(), mean_of_path(entropy_behav_T, path_T), marked_T)
    high_T = epsilon + (epsilon_high - epsilon) * (entropy_T / full).clamp(0, 1)
    ratio_T = log_ratio_T.clamp(-LIMIT, LIMIT).exp()
    bounded_T = ratio_T.minimum(1 + high_T).clamp(min=1 - epsilon)
    return -(ratio_T * advantage_T).minimum(bounded_T * advantage_T)


def reinforce(lp_T: Tensor, advantage_T: Tensor) -> Tensor:
    """REINFORCE: −A·log p (Williams 1992), for samples of the trained policy itself."""
    return -advantage_T * lp_T


def weighted(log_ratio_T: Tensor, advantage_T: Tensor) -> Tensor:
    """Importance-weighted policy gradient without clipping: −ρA."""
    return -advantage_T * log_ratio_T.clamp(-LIMIT, LIMIT).exp()
