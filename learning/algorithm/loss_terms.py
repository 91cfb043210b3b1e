"""Further terms of the loss, per sampled token; each has its own coefficient and optionally its own weights.

The loop computes only the columns that a term names as parameters: `lp_ref_T` costs a forward pass of the reference
policy, `entropy_T` a pass over the logits. The `token_mask` of a term says which tokens it covers (an expert's, those
of good completions).
Shapes: T sampled tokens.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from schemas.number_schedules import ScheduledFloat

LIMIT = 20.0
Estimator = Literal["k1", "k2", "k3"]


def kl(
    lp_T: Tensor,
    lp_ref_T: Tensor,
    lp_behav_T: Tensor,
    *,
    estimator: Literal["k1", "k2", "k3"] = "k3",
    importance: bool = False,
) -> Tensor:
    """KL penalty: an estimate of KL(policy ‖ reference) at the sampled tokens (Schulman 2020).

    With r = log p_ref − log p: k1 = −r, k2 = r²/2, k3 = eʳ − 1 − r. As a loss on own samples, k2 has the gradient of
    the reverse KL, k3 that of the forward KL, k1 none in expectation. `importance` multiplies by p/p_behav, gradient
    included, which gives k1 and k3 the gradient of the reverse KL, also off-policy.
    """
    estimate_T = _estimate_kl(lp_T, lp_ref_T, estimator)
    return estimate_T * (lp_T - lp_behav_T).clamp(-LIMIT, LIMIT).exp() if importance else estimate_T


def kl_convex(
    lp_T: Tensor,
    lp_base_T: Tensor,
    lp_previous_T: Tensor,
    *,
    lam: ScheduledFloat = 0.25,
    estimator: Estimator = "k3",
) -> Tensor:
    """KL penalty to two references: λ·KL(policy ‖ base) + (1 − λ)·KL(policy ‖ previous) (ReMix, Liang et al. 2025).

    The stage's `references` name both: `base` is fixed, `previous` is refreshed from the policy.
    """
    base_T, previous_T = (_estimate_kl(lp_T, other_T, estimator) for other_T in (lp_base_T, lp_previous_T))
    return lam * base_T + (1 - lam) * previous_T


def drift(log_ratio_T: Tensor, *, estimator: Literal["abs", "k2", "k3"] = "abs") -> Tensor:
    """Distance from the sampling policy: |log ρ|, (log ρ)²/2 or ρ − 1 − log ρ, which estimates KL(sampler ‖ policy)."""
    clamped_T = log_ratio_T.clamp(-LIMIT, LIMIT)
    return {
        "abs": clamped_T.abs,
        "k2": lambda: clamped_T.square() / 2,
        "k3": lambda: clamped_T.expm1() - clamped_T,
    }[estimator]()


def entropy(entropy_T: Tensor) -> Tensor:
    """Entropy bonus: minus the entropy of the policy at each sampled token."""
    return -entropy_T


def entropy_band(entropy_T: Tensor, *, low: ScheduledFloat, high: ScheduledFloat) -> Tensor:
    """Penalty in nats for an entropy below `low` or above `high`; 0 inside the band."""
    return (low - entropy_T).clamp(min=0) + (entropy_T - high).clamp(min=0)


def entropy_smoothing(
    entropy_T: Tensor,
    *,
    history: ScheduledFloat,
    low: Annotated[float, Field(ge=0)] = 0.8,
    high: Annotated[float, Field(ge=0)] = 1.2,
    penalty: Annotated[float, Field(ge=0)] = 0.1,
    grows: bool = False,
) -> Tensor:
    """Penalty for an entropy outside of [low·history, high·history], the band around a past mean (EPO, Xu et al. 2025).

    It is `penalty` at tokens outside, as in the paper: a constant, which has no gradient. With `grows` it is `penalty`
    times the distance from the band, so that the term moves the entropy back. 0 while `history` is 0: there is none.
    """
    if not history:
        return torch.zeros_like(entropy_T)
    outside_T = (low * history - entropy_T).clamp(min=0) + (entropy_T - high * history).clamp(min=0)
    return penalty * (outside_T if grows else (outside_T > 0).to(entropy_T))


def reinforce(lp_T: Tensor, reward_T: Tensor) -> Tensor:
    """REINFORCE without a baseline on completions with a reward above 0: −r·log p; others give 0 (AEPO 2025).

    With a `token_mask` of completions sampled at another temperature it raises or lowers the entropy of the policy.
    """
    return -reward_T.clamp(min=0) * lp_T


def cross_entropy(lp_T: Tensor) -> Tensor:
    """Cross-entropy: −log p of the token; use `token_mask` to restrict it to an expert's or to good completions."""
    return -lp_T


def observation_cross_entropy(surprise_T: Tensor) -> Tensor:
    """Cross-entropy on what the environment answered: the policy learns to predict it (ECHO in prime-rl).

    At a turn's last token it is the mean of −log p over the tokens observed after the turn, 0 at other tokens. With
    `loss_aggregation: observed_mean` and `token_mask: []` the term is the mean over all observed tokens. New contexts,
    which replace the prompt, are not predicted.
    """
    return surprise_T


def cross_entropy_uncertain(lp_T: Tensor) -> Tensor:
    """Cross-entropy weighted by p(1 − p), no gradient through the weight (CHORD-φ, Zhang et al. 2025).

    Tokens that the policy finds nearly certain or nearly impossible count little.
    """
    p_T = lp_T.detach().exp()
    return -(p_T * (1 - p_T)) * lp_T


def distil_reverse(lp_T: Tensor, lp_teacher_T: Tensor, lp_behav_T: Tensor) -> Tensor:
    """On-policy distillation: KL(policy ‖ teacher) at the sampled tokens, weighted by p/p_behav.

    The value is ρ·(log p − log p_teacher), and the gradient that of the KL. The stage's `references` name the
    `teacher`.
    """
    gap_T = (lp_T - lp_teacher_T).detach()
    return (lp_T - lp_behav_T).clamp(-LIMIT, LIMIT).exp() * gap_T


def distil_forward(lp_T: Tensor, lp_teacher_T: Tensor, lp_behav_T: Tensor) -> Tensor:
    """Forward distillation: cross-entropy at the sampled tokens, weighted by p_teacher/p_behav.

    In expectation over p_behav its gradient is that of KL(teacher ‖ policy). The weight is at most e²⁰.
    """
    weight_T = (lp_teacher_T - lp_behav_T).clamp(-LIMIT, LIMIT).exp()
    return -weight_T * lp_T


def _estimate_kl(lp_T: Tensor, other_T: Tensor, estimator: str) -> Tensor:
    """Return KL(policy ‖ other) at each token by one of Schulman's estimators."""
    r_T = (other_T - lp_T).clamp(-LIMIT, LIMIT)
    return {"k1": lambda: -r_T, "k2": lambda: r_T.square() / 2, "k3": lambda: r_T.expm1() - r_T}[estimator]()
