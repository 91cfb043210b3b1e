"""Own samples and an expert's in one objective: RL-PLUS (Dong et al. 2025).

An expert's token was sampled by nobody whose probabilities are known. Its density is taken to be that of a mixture of
the old policy and of an estimate half-way between the old policy and certainty, and the less the policy would say it
now, the more it counts.
Shapes: T sampled tokens.
"""

import math

import torch
from torch import Tensor

from schemas.schedules import ScheduledFloat

LIMIT = 20.0


def multiple_importance(lp_T: Tensor, lp_behav_T: Tensor, lp_prox_T: Tensor, external_T: Tensor) -> Tensor:
    """log 2π/(π_old + π_ω), π_ω = (π_old + 1)/2, at an expert's tokens; log π/π_behav at own ones (RL-PLUS).

    π_old is the policy before this iteration's update. The ratio of an expert's token is at most 4.
    """
    old_T = lp_prox_T.exp()
    mixture_T = (old_T + (old_T + 1) / 2).log() - math.log(2)
    return lp_T - torch.where(external_T, mixture_T, lp_behav_T)


def exploratory(
    log_ratio_T: Tensor,
    advantage_T: Tensor,
    lp_T: Tensor,
    external_T: Tensor,
    *,
    gamma: ScheduledFloat = 0.5,
    epsilon: ScheduledFloat = 0.2,
    epsilon_high: ScheduledFloat | None = None,
) -> Tensor:
    """−ρA(1 − π)^γ without bounds at an expert's tokens, PPO's clipped surrogate at own ones (RL-PLUS).

    The focal factor follows the current policy and carries no gradient.
    """
    ratio_T = log_ratio_T.clamp(-LIMIT, LIMIT).exp()
    high = epsilon if epsilon_high is None else epsilon_high
    own_T = -(ratio_T * advantage_T).minimum(ratio_T.clamp(1 - epsilon, 1 + high) * advantage_T)
    factor_T = (1 - lp_T.detach().exp()).clamp(min=0) ** gamma
    return torch.where(external_T, -ratio_T * advantage_T * factor_T, own_T)
