"""Policy loss that fits values of the uniformly random policy, read from the logits: ROVER (He et al. 2025).

Q(s, a) = ρ·(log π(a|s) − log π_old(a|s)). The value of the random policy at a state is the plain mean of Q over the
vocabulary, so its Bellman equation needs no critic, no reference and no clipping.
Shapes: T sampled tokens.
"""

import torch
from torch import Tensor

from schemas.number_schedules import ScheduledFloat


def rover(
    lp_T: Tensor,
    lp_prox_T: Tensor,
    lp_mean_T: Tensor,
    lp_mean_prox_T: Tensor,
    advantage_T: Tensor,
    path_T: Tensor,
    place_T: Tensor,
    *,
    rho: ScheduledFloat = 1.0,
    next_weight: ScheduledFloat = 1.0,
) -> Tensor:
    """Squared error of Q against the centred reward plus the mean of Q at the next token (ROVER, He et al. 2025).

    Q(s, a) = ρ·(log π(a|s) − log π_old(a|s)). No gradient flows through the target. The advantage must be the
    group-centred reward at every token; `next_weight` scales the value of the next token, which is 0 after the last.
    """
    q_T = rho * (lp_T - lp_prox_T)
    value_T = rho * (lp_mean_T - lp_mean_prox_T).detach()
    target_T = advantage_T + next_weight * _shift_to_next(value_T, path_T, place_T)
    return (q_T - target_T.detach()).square()


def _shift_to_next(values_T: Tensor, path_T: Tensor, place_T: Tensor) -> Tensor:
    """Return at each token the value of the following token of the same path, 0 at the last."""
    size = int(place_T.max()) + 2 if len(place_T) else 1
    order = (path_T * size + place_T).argsort()
    path_T, place_T, ordered_T = path_T[order], place_T[order], values_T[order]
    follows_T = torch.zeros_like(path_T, dtype=torch.bool)
    follows_T[:-1] = (path_T[1:] == path_T[:-1]) & (place_T[1:] == place_T[:-1] + 1)
    return torch.zeros_like(values_T).index_put((order,), ordered_T.roll(-1).where(follows_T, 0.0))
