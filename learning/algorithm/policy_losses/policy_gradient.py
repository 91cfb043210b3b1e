"""Per-token policy-gradient losses from the log-ratio and the advantage; lower is better.

A log-ratio is clamped to ±20 before it is exponentiated, so that no sample can give an infinite loss.
Shapes: T sampled tokens.
"""

from torch import Tensor

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


def reinforce(lp_T: Tensor, advantage_T: Tensor) -> Tensor:
    """REINFORCE: −A·log p (Williams 1992), for samples of the trained policy itself."""
    return -advantage_T * lp_T


def weighted(log_ratio_T: Tensor, advantage_T: Tensor) -> Tensor:
    """Importance-weighted policy gradient without clipping: −ρA."""
    return -advantage_T * log_ratio_T.clamp(-LIMIT, LIMIT).exp()
