"""Planning in finite worlds: models of counts, bonuses for what is rare, backward induction.

Shapes: S states, A actions. States are the one-hot observations; in a world with a horizon, as `finite`, they number
the step too.
"""

import math
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import nn

from learning.control.losses.standard import Algorithm, Share
from learning.control.networks.build import Networks
from learning.control.tables.counts import Kept, Planned, count_steps, read_table, require_tables, write_table
from schemas.errors import StepError

Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
MOST_SWEEPS = 10_000
"""Sweeps over all states after which values that still change count as endless."""


def ucb_vi(
    networks: Networks,
    *,
    horizon: Count,
    highest: Positive = 1.0,
    bonus: Weight = 0.1,
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.05,
) -> Algorithm:
    """Optimistic value iteration on counts, planned again after each episode (UCB-VI, Azar et al. 2017, algorithm 2).

    The bonus of n visits is c · H · R · L / √n with L = log(5 S A T / δ), T steps in all, R the `highest` reward; the
    theory has c = 7. Values never rise, and are H · R where nothing is known.
    """
    require_tables(networks, "ucb_vi")
    actor, top = networks.make_choice_values(), horizon * highest
    write_table(actor, np.full((networks.spaces.observations, networks.spaces.actions), top))

    def fit(kept: Kept, rng: np.random.Generator) -> dict[str, float]:
        counts, previous_SA = count_steps(kept, networks.spaces), read_table(actor)
        visits_SA = np.maximum(counts.visits_SA, 1)
        scale = math.log(5 * visits_SA.size * counts.visits_SA.sum() / delta)
        width_SA = bonus * top * scale / np.sqrt(visits_SA)
        reward_SA, next_SAS = counts.reward_SA / visits_SA, counts.next_SAS / visits_SA[..., None]
        value_SA, value_S = previous_SA, np.zeros(len(previous_SA))
        for _ in range(horizon):
            planned_SA = np.minimum(reward_SA + width_SA + next_SAS @ value_S, previous_SA)
            value_SA = np.where(counts.visits_SA > 0, planned_SA, previous_SA)
            value_S = value_SA.max(1)
        write_table(actor, value_SA)
        return {"visited": float((counts.visits_SA > 0).mean()), "largest_value": float(value_S.max())}

    return Algorithm(Planned(actor), actor, "make_choice_values", (), fit=fit)


def value_iteration(networks: Networks, *, gamma: Share = 0.95, tolerance: Positive = 1e-6) -> Algorithm:
    """Best values of the model that counts all kept steps, planned again after each episode (certainty equivalence).

    Q = r̂ + γ P̂ max Q, until no value changes by more than `tolerance`. A pair that was never seen has value 0.
    """
    require_tables(networks, "value_iteration")
    actor = networks.make_choice_values()
    write_table(actor, np.zeros((networks.spaces.observations, networks.spaces.actions)))

    def fit(kept: Kept, rng: np.random.Generator) -> dict[str, float]:
        counts, value_SA = count_steps(kept, networks.spaces), read_table(actor)
        visits_SA = np.maximum(counts.visits_SA, 1)
        reward_SA, next_SAS = counts.reward_SA / visits_SA, counts.next_SAS / visits_SA[..., None]
        for _ in range(MOST_SWEEPS):
            before_SA, value_SA = value_SA, reward_SA + gamma * next_SAS @ value_SA.max(1)
            if np.abs(value_SA - before_SA).max() <= tolerance:
                break
        else:
            raise StepError(f"loss value_iteration: values still change after {MOST_SWEEPS} sweeps: lower gamma")
        write_table(actor, value_SA)
        return {"visited": float((counts.visits_SA > 0).mean()), "largest_value": float(value_SA.max())}

    return Algorithm(Planned(actor), actor, "make_choice_values", (), fit=fit)


def find_worst(next_SAS: np.ndarray, value_S: np.ndarray, radius: float) -> np.ndarray:
    """Return the smallest means of values (S, A) over distributions within a total variation of the given ones.

    Values are from 0 on, and the worst is a state of value 0: `radius` of the mass leaves the highest values for it.
    """
    order = np.argsort(-value_S)
    taken_SAS = np.minimum(next_SAS[..., order].cumsum(-1), radius)
    left_SAS = next_SAS[..., order] - np.diff(taken_SAS, axis=-1, prepend=0)
    return left_SAS @ value_S[order]


def dr_rpo(
    networks: Networks,
    *,
    horizon: Count,
    highest: Positive = 1.0,
    radius: Share = 0.1,
    step_size: Positive = 1.0,
    bonus: Weight = 0.1,
    ridge: Positive = 1.0,
) -> Algorithm:
    """Robust optimistic planning near a reference policy, after each episode (DR-RPO, Gu et al. 2025).

    Rewards and transitions by ridge regression on one-hot features, the bonus β / √(n + ridge), the worst transition
    within `radius`, and π ∝ π_ref · exp(η Q) at every step, η being the step size. π_ref is the policy at the start:
    `model`, or a uniform one.
    """
    require_tables(networks, "dr_rpo")
    actor, top = networks.make_stochastic_actor(), horizon * highest
    write_table(actor, np.zeros((networks.spaces.observations, networks.spaces.actions)))
    loss = Planned(actor)
    loss.register_buffer("reference", torch.full((networks.spaces.observations, networks.spaces.actions), torch.nan))

    def fit(kept: Kept, rng: np.random.Generator) -> dict[str, float]:
        counts, reference = count_steps(kept, networks.spaces), loss.get_buffer("reference")
        if reference.isnan().any():
            reference.copy_(torch.from_numpy(read_table(actor)).log_softmax(-1))
        reference_SA = reference.double().numpy()
        seen_SA = counts.visits_SA + ridge
        reward_SA, next_SAS = counts.reward_SA / seen_SA, counts.next_SAS / seen_SA[..., None]
        width_SA, value_S = bonus / np.sqrt(seen_SA), np.zeros(len(seen_SA))
        logit_SA = reference_SA
        for _ in range(horizon):
            value_SA = np.clip(reward_SA + width_SA + find_worst(next_SAS, value_S, radius), 0, top)
            logit_SA = reference_SA + step_size * value_SA
            highest_S = logit_SA.max(1)
            value_S = (highest_S + np.log(np.exp(logit_SA - highest_S[:, None]).sum(1))) / step_size
        write_table(actor, logit_SA)
        return {"visited": float((counts.visits_SA > 0).mean()), "largest_value": float(value_S.max())}

    return Algorithm(loss, actor, "make_stochastic_actor", (), fit=fit)


class LowRank(nn.Module):
    """Ratios f(s, a, s') = φ(s, a) · ψ(s') of positive features; φ has length 1."""

    def __init__(self, states: int, actions: int, rank: int) -> None:
        super().__init__()
        self.acting = nn.Parameter(torch.randn(states, actions, rank))
        self.following = nn.Parameter(torch.randn(states, rank))

    def make_features(self) -> torch.Tensor:
        """Return φ (S, A, rank)."""
        return nn.functional.normalize(nn.functional.softplus(self.acting), dim=-1)

    def forward(self) -> torch.Tensor:
        """Return f (S, A, S)."""
        return self.make_features() @ nn.functional.softplus(self.following).T


def contrast(ratio_SAS: torch.Tensor, next_SAS: torch.Tensor) -> torch.Tensor:
    """Return the mean of log(1 + 1/f) of real next states and log(1 + f) of evenly drawn ones (Qiu et al. 2022, eq. 3).

    Its smallest value is at f = P(s'|s, a) · S. All negatives are averaged, none is drawn.
    """
    real, shown_SA = (next_SAS * torch.log1p(1 / ratio_SAS)).sum(), next_SAS.sum(-1)
    return (real + (shown_SA * torch.log1p(ratio_SAS).mean(-1)).sum()) / shown_SA.sum()


def contrastive_ucb(
    networks: Networks,
    *,
    horizon: Count,
    highest: Positive = 1.0,
    rank: Count = 4,
    bonus: Weight = 0.1,
    ridge: Positive = 1.0,
    steps: Count = 50,
    learning_rate: Positive = 0.05,
) -> Algorithm:
    """Contrastive features, a bonus from them, and optimistic planning, after each episode (Qiu et al. 2022).

    Features f = φ(s, a) · ψ(s') of `rank` numbers are fitted by `steps` of Adam on real and negative next states; the
    bonus is β √(φᵀ Σ⁻¹ φ) with Σ = ridge · I + Σ_i φ_i φ_iᵀ over all kept steps.
    """
    require_tables(networks, "contrastive_ucb")
    states, actions = networks.spaces.observations, networks.spaces.actions
    actor, top, loss = networks.make_choice_values(), horizon * highest, LowRank(states, actions, rank)
    write_table(actor, np.full((states, actions), top))
    loss.actor_network = actor

    def fit(kept: Kept, rng: np.random.Generator) -> dict[str, float]:
        counts = count_steps(kept, networks.spaces)
        next_SAS = torch.from_numpy(counts.next_SAS).float()
        optimizer, contrasted = torch.optim.Adam([loss.acting, loss.following], lr=learning_rate), torch.zeros(())
        for _ in range(steps if next_SAS.any() else 0):
            contrasted = contrast(loss(), next_SAS)
            optimizer.zero_grad()
            contrasted.backward()
            optimizer.step()
        loss.zero_grad(set_to_none=True)
        with torch.no_grad():
            feature_SAK, ratio_SAS = (made.double().numpy() for made in (loss.make_features(), loss()))
        visits_SA = np.maximum(counts.visits_SA, 1)
        goes_on_SA = counts.next_SAS.sum(-1) / visits_SA
        model_SAS = ratio_SAS / ratio_SAS.sum(-1, keepdims=True) * goes_on_SA[..., None]
        width_SA = bonus * measure_novelty(feature_SAK, counts.visits_SA, ridge)
        value_SA, value_S = np.zeros_like(width_SA), np.zeros(states)
        for _ in range(horizon):
            value_SA = np.minimum(counts.reward_SA / visits_SA + width_SA + model_SAS @ value_S, top)
            value_S = value_SA.max(1)
        write_table(actor, value_SA)
        return {"contrastive_loss": float(contrasted.detach()), "bonus": float(width_SA.mean())}

    return Algorithm(loss, actor, "make_choice_values", (), fit=fit)


def measure_novelty(feature_SAK: np.ndarray, visits_SA: np.ndarray, ridge: float) -> np.ndarray:
    """Return √(φᵀ Σ⁻¹ φ) (S, A) with Σ = ridge · I + Σ n(s, a) φ φᵀ."""
    covariance = ridge * np.eye(feature_SAK.shape[-1])
    covariance += np.einsum("sa,sak,sal->kl", visits_SA, feature_SAK, feature_SAK)
    return np.sqrt(np.einsum("sak,kl,sal->sa", feature_SAK, np.linalg.inv(covariance), feature_SAK))
