"""Rewards blended from the world's and a heuristic one, with weights and a discount that raise the world's return.

Two levels: a policy that is best under the blend, and weights that follow the gradient of the world's return of that
policy, by implicit differentiation. Shapes: S states, A actions.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from learning.control.losses.standard import Algorithm
from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.tables.counts import Kept, count_steps, read_table, require_tables, write_table
from learning.lookup import Inner
from schemas.control import HeuristicUse
from schemas.errors import StepError

if TYPE_CHECKING:
    HeuristicFunction = Inner
else:
    HeuristicFunction = HeuristicUse
"""Option of a slot's function: a further reward, which it gets bound."""
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Objective = Callable[[Tensor, Tensor], Tensor]
"""Returns a number from a policy's logits (S · A,) and the blend's settings: both weights, the discount's logit."""


class Blended(nn.Module):
    """An actor, and the settings of the blend that it is best for."""

    def __init__(self, actor: nn.Module, discount: float) -> None:
        super().__init__()
        self.actor_network = actor
        start = torch.tensor([1.0, 1.0, discount], dtype=torch.float64)
        start[2] = start[2].logit()
        self.register_buffer("settings", start)


def compute_value(
    logit_SA: Tensor, reward_SA: Tensor, next_SAS: Tensor, start_S: Tensor, discount: Tensor | float
) -> Tensor:
    """Return the value of a softmax policy from a distribution over states: start · (I − γ P_π)⁻¹ r_π."""
    policy_SA = logit_SA.softmax(-1)
    chance_SS = torch.einsum("sa,sat->st", policy_SA, next_SAS)
    system_SS = torch.eye(len(chance_SS), dtype=chance_SS.dtype) - discount * chance_SS
    return start_S @ torch.linalg.solve(system_SS, (policy_SA * reward_SA).sum(-1))


def solve_inner(inner: Objective, logits: Tensor, settings: Tensor, steps: int) -> Tensor:
    """Return the logits that are best under the blend, by up to `steps` of L-BFGS from given ones."""
    found = logits.clone().requires_grad_(True)
    search = torch.optim.LBFGS(
        [found], max_iter=steps, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def measure() -> Tensor:
        search.zero_grad()
        loss = -inner(found, settings)
        loss.backward()
        return loss

    search.step(measure)  # type: ignore[arg-type]
    return found.detach()


def differentiate_implicitly(
    inner: Objective, outer: Callable[[Tensor], Tensor], logits: Tensor, settings: Tensor
) -> Tensor:
    """Return dJ(θ*(φ))/dφ = −∂²J_in/∂φ∂θ · (∂²J_in/∂θ²)⁻¹ · ∂J/∂θ at θ* (Gupta et al. 2023).

    θ are the logits, φ the settings, J_in the objective under the blend, J the world's return. Raise StepError where
    the second derivative cannot be inverted.
    """
    theta, phi = logits.clone().requires_grad_(True), settings.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(outer(theta), theta)
    curvature = torch.autograd.functional.hessian(lambda one: inner(one, settings), logits)
    try:
        direction = torch.linalg.solve(curvature, slope)
    except RuntimeError as error:  # torch's LinAlgError
        raise StepError("loss blended_rewards: its policy has flat directions: raise `ridge`") from error
    (inner_slope,) = torch.autograd.grad(inner(theta, phi), theta, create_graph=True)
    (along,) = torch.autograd.grad(inner_slope @ direction.detach(), phi)
    return -along


def read_heuristic(heuristic: Inner, spaces: Spaces) -> np.ndarray:
    """Return a heuristic's reward of every state and action (S, A). Raise StepError unless all are finite numbers."""
    shape = spaces.observations, spaces.actions
    state_N, action_N = np.divmod(np.arange(math.prod(shape)), spaces.actions)
    shown_NO = np.eye(spaces.observations, dtype=np.float32)[state_N]
    helps_N = np.asarray(heuristic(observation_NO=shown_NO, action_N=action_N, spaces=spaces), float)
    if helps_N.shape != (len(state_N),) or not np.isfinite(helps_N).all():
        raise StepError(f"heuristic: it must give {len(state_N)} finite numbers, and gives {helps_N.shape}")
    return helps_N.reshape(shape)


def blended_rewards(
    networks: Networks,
    *,
    heuristic: HeuristicFunction,
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.95,
    discount: Annotated[float, Field(gt=0, lt=1)] = 0.9,
    ridge: Positive = 0.01,
    inner_steps: Count = 100,
    outer_steps: Annotated[int, Field(ge=0)] = 1,
    outer_learning_rate: Positive = 0.1,
    learns_discount: bool = True,
) -> Algorithm:
    """Policy under a learned blend of the world's reward and a heuristic one, after each episode (Gupta et al. 2023).

    The blend is w₁ r + w₂ h with discount γ_φ; both weights begin at 1, the discount at `discount`. The policy is the
    best softmax table under the blend in the model that counts all kept steps, less `ridge` / 2 · ‖logits‖². Then
    `outer_steps` gradient steps on w and γ_φ raise the policy's return at `gamma` by the world's reward alone; with 0
    the plain sum is kept. Episodes begin, in this model, in the states that were visited, by their visits.
    """
    require_tables(networks, "blended_rewards")
    states, actions = networks.spaces.observations, networks.spaces.actions
    actor = networks.make_stochastic_actor()
    write_table(actor, np.zeros((states, actions)))
    loss = Blended(actor, discount)

    def fit(kept: Kept, rng: np.random.Generator) -> dict[str, float]:
        counts = count_steps(kept, networks.spaces)
        visits_SA = np.maximum(counts.visits_SA, 1)
        seen_SA = torch.from_numpy(counts.visits_SA > 0)
        reward_SA, next_SAS = (
            torch.from_numpy(part) for part in (counts.reward_SA / visits_SA, counts.next_SAS / visits_SA[..., None])
        )
        helps_SA = torch.from_numpy(read_heuristic(heuristic, networks.spaces)) * seen_SA
        start_S = torch.from_numpy(counts.visits_SA.sum(1) / counts.visits_SA.sum())

        def inner(logits: Tensor, settings: Tensor) -> Tensor:
            mixed_SA = settings[0] * reward_SA + settings[1] * helps_SA
            value = compute_value(logits.view(states, actions), mixed_SA, next_SAS, start_S, settings[2].sigmoid())
            return value - ridge / 2 * logits.square().sum()

        def outer(logits: Tensor) -> Tensor:
            return compute_value(logits.view(states, actions), reward_SA, next_SAS, start_S, gamma)

        settings = loss.get_buffer("settings")
        logits = solve_inner(inner, torch.from_numpy(read_table(actor)).reshape(-1), settings, inner_steps)
        for _ in range(outer_steps):
            slope = differentiate_implicitly(inner, outer, logits, settings)
            settings[: 3 if learns_discount else 2] += outer_learning_rate * slope[: 3 if learns_discount else 2]
            logits = solve_inner(inner, logits, settings, inner_steps)
        write_table(actor, logits.reshape(states, actions).numpy())
        primary, helpful, learned = settings.tolist()
        learned = 1 / (1 + np.exp(-learned))
        return {"weight_primary": primary, "weight_heuristic": helpful, "discount": learned} | {
            "world_return": float(outer(logits))
        }

    return Algorithm(loss, actor, "make_stochastic_actor", (), fit=fit)
