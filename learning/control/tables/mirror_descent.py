"""Mirror descent: policies that improve a linearised objective near the previous policy.

With networks by several gradient steps: on-policy the term `kl_to_previous` joins `mdpo`; off-policy the term
`mirror_descent` replaces the actor's loss of `mdpo_off` (Tomar et al. 2020). With tables in closed form:
`policy_mirror_descent`. Shapes: S states, A actions.
"""

import copy
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from learning.control.losses.standard import NO_ENTROPY, Algorithm, Share, follow, require_box
from learning.control.networks.build import Networks
from learning.control.tables.counts import Kept, Planned, count_steps, read_table, require_tables, write_table
from schemas.errors import StepError


def mdpo(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    lmbda: Share = 0.95,
    critic_coef: Annotated[float, Field(ge=0)] = 0.5,
    normalize_advantage: bool = True,
) -> Algorithm:
    """Linearised objective E[ratio · A] without clipping (Tomar et al. 2020); `kl_to_previous` keeps it near."""
    from torchrl.objectives import PPOLoss
    from torchrl.objectives.value import GAE

    actor, critic = networks.make_stochastic_actor(), networks.make_state_value()
    loss = PPOLoss(
        actor,
        critic,
        entropy_bonus=False,
        critic_coeff=critic_coef,
        loss_critic_type="l2",
        normalize_advantage=normalize_advantage,
    )
    advantage = GAE(gamma=gamma, lmbda=lmbda, value_network=critic, average_gae=False)
    return Algorithm(loss, actor, "make_stochastic_actor", ("loss_objective", "loss_critic"), advantage=advantage)


def mdpo_off(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    num_critics: Annotated[int, Field(ge=1)] = 2,
    entropy: Annotated[float, Field(ge=0)] = 0.0,
    inner_steps: Annotated[int, Field(ge=1)] = 10,
) -> Algorithm:
    """Critics of soft actor-critic, and a previous policy that is renewed every `inner_steps` (Tomar et al. 2020).

    The targets have the entropy at temperature `entropy`. The actor is trained by the term `mirror_descent`.
    """
    from torchrl.objectives import SACLoss

    require_box(networks, "mdpo_off")
    actor = networks.make_stochastic_actor()
    previous = copy.deepcopy(actor).requires_grad_(False)
    loss: Any = SACLoss(
        actor,
        networks.make_action_value(),
        num_qvalue_nets=num_critics,
        alpha_init=max(entropy, NO_ENTROPY),
        fixed_alpha=True,
        target_entropy=0.0,  # of an adapted temperature; TorchRL asks for one
        loss_function="l2",
    )
    loss.make_value_estimator(gamma=gamma)
    loss.previous = previous
    loss.register_buffer("since_previous", torch.zeros((), dtype=torch.int64))
    move_targets = follow(loss, tau)

    def update_targets() -> None:
        move_targets()
        loss.since_previous += 1
        if loss.since_previous % inner_steps == 0:
            previous.load_state_dict(actor.state_dict())

    return Algorithm(loss, actor, "make_stochastic_actor", ("loss_actor", "loss_qvalue"), update_targets)


def policy_mirror_descent(
    networks: Networks,
    *,
    gamma: Share = 0.95,
    step_size: Annotated[float, Field(gt=0)] = 1.0,
    growth: Annotated[float, Field(ge=1)] = 1.0,
    updates: Annotated[int, Field(ge=1)] = 10,
) -> Algorithm:
    """Mirror descent on tables, after each episode: π ← argmax_p η ⟨Q, p⟩ − KL(p‖π), `updates` times (Xiao 2022).

    The maximum is π ∝ π · exp(η Q). Q is the exact value of π in the model that counts all kept steps, in which a pair
    that was never seen earns nothing and ends. η begins at `step_size` and is multiplied by `growth` at each update:
    from 1/γ on, the distance to the best values falls linearly, with 1 as the inverse of their number.
    """
    require_tables(networks, "policy_mirror_descent")
    actor = networks.make_stochastic_actor()
    write_table(actor, np.zeros((networks.spaces.observations, networks.spaces.actions)))

    def fit(kept: Kept, rng: np.random.Generator) -> dict[str, float]:
        counts, logit_SA = count_steps(kept, networks.spaces), read_table(actor)
        visits_SA = np.maximum(counts.visits_SA, 1)
        reward_SA, next_SAS = counts.reward_SA / visits_SA, counts.next_SAS / visits_SA[..., None]
        value_S = np.zeros(len(logit_SA))
        for update in range(updates):
            policy_SA = np.exp(logit_SA - logit_SA.max(1, keepdims=True))
            policy_SA /= policy_SA.sum(1, keepdims=True)
            value_SA, value_S = evaluate_exactly(reward_SA, next_SAS, policy_SA, gamma)
            logit_SA = logit_SA + step_size * growth**update * (value_SA - value_S[:, None])
        write_table(actor, logit_SA - logit_SA.max(1, keepdims=True))
        return {"visited": float((counts.visits_SA > 0).mean()), "mean_value": float(value_S.mean())}

    return Algorithm(Planned(actor), actor, "make_stochastic_actor", (), fit=fit, updates_per_fit=updates)


def evaluate_exactly(
    reward_SA: np.ndarray, next_SAS: np.ndarray, policy_SA: np.ndarray, gamma: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return a policy's values Q (S, A) and V (S,): V = (I − γ P_π)⁻¹ r_π.

    Raise StepError where episodes never end and are not discounted.
    """
    chance_SS = np.einsum("sa,sat->st", policy_SA, next_SAS)
    try:
        value_S = np.linalg.solve(np.eye(len(chance_SS)) - gamma * chance_SS, (policy_SA * reward_SA).sum(1))
    except np.linalg.LinAlgError as error:
        raise StepError("policy_mirror_descent: some episodes never end: set gamma below 1") from error
    return reward_SA + gamma * next_SAS @ value_S, value_S
