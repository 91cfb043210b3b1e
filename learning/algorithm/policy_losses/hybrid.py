"""Policy loss for batches of own and expert samples: RL-PLUS (Dong et al. 2025).

The sampling probabilities of an expert's tokens are unknown; the ratio `multiple_importance` estimates them. The less
likely an expert's token is under the policy, the more it counts.
Shapes: T sampled tokens.
"""

import torch
from torch import Tensor

from schemas.number_schedules import ScheduledFloat

LIMIT = 20.0


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
    """−ρA(1 − π)^γ, unclipped, at an expert's tokens; PPO's clipped loss at own ones (RL-PLUS, Dong et al. 2025).

    The focal factor (1 − π)^γ is computed from the current policy and carries no gradient.
    """
    ratio_T = log_ratio_T.clamp(-LIMIT, LIMIT).exp()
    high = epsilon if epsilon_high is None else epsilon_high
    own_T = -(ratio_T * advantage_T).minimum(ratio_T.clamp(1 - epsilon, 1 + high) * advantage_T)
    factor_T = (1 - lp_T.detach().exp()).clamp(min=0) ** gamma
    return torch.where(external_T, -ratio_T * advantage_T * factor_T, own_T)
