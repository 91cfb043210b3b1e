"""Algorithms of kind control: TorchRL's losses with their networks, target updates and ways to act."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from learning.control.networks import Networks
from learning.control.terms import cloning
from schemas.errors import StepError

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Algorithm:
    """A loss with what belongs to it."""

    loss: Any
    """TorchRL's loss module: called with a batch, it returns the terms `loss_<name>`."""
    actor: Any
    """Module that writes `action`; its parameters are trained by the loss."""
    actor_form: str
    """Function of `Networks` that made the actor."""
    terms: tuple[str, ...]
    """Terms of the loss that are trained on; it may return others to look at."""
    update_targets: Callable[[], None] = lambda: None
    """Moves the target networks after an optimiser step."""
    advantage: Any = None
    """Estimator of advantages for a loss on the newest steps alone; None: the loss takes steps of any policy."""
    delayed: tuple[str, ...] = ()
    """Beginnings of the names of parameters that only every second optimiser step trains; with any, that step alone
    moves the target networks."""


def dqn(networks: Networks, *, gamma: Share = 0.99, tau: Share = 0.005, double: bool = True) -> Algorithm:
    """Deep Q-learning with a target network, by default with double Q-learning (Mnih et al. 2015, van Hasselt 2016)."""
    from torchrl.objectives import DQNLoss

    require_choices(networks, "dqn")
    actor = networks.make_choice_values()
    loss = DQNLoss(actor, action_space="categorical", double_dqn=double, delay_value=True)
    loss.make_value_estimator(gamma=gamma)
    return Algorithm(loss, actor, "make_choice_values", ("loss",), follow(loss, tau))


def sac(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    num_critics: Annotated[int, Field(ge=1)] = 2,
    alpha: Annotated[float, Field(gt=0)] = 1.0,
    fixed_alpha: bool = False,
    target_entropy: float | None = None,
) -> Algorithm:
    """Soft actor-critic; the temperature keeps the entropy at `target_entropy` (Haarnoja et al. 2018).

    `alpha` is the first temperature, or with `fixed_alpha` the only one. Without a target it is −1 per number of an
    action, or 98 % of the largest entropy of choices (Christodoulou 2019).
    """
    from torchrl.objectives import DiscreteSACLoss, SACLoss

    actor, spaces = networks.make_stochastic_actor(), networks.spaces
    options: dict[str, Any] = {"alpha_init": alpha, "fixed_alpha": fixed_alpha, "loss_function": "l2"}
    if spaces.is_discrete:
        weight: dict[str, Any] = {} if target_entropy is None else {"target_entropy": target_entropy}
        values = networks.make_values_of_choices()
        loss: Any = DiscreteSACLoss(
            actor,
            values,
            action_space="categorical",
            num_actions=spaces.actions,
            num_qvalue_nets=num_critics,
            **options,
            **weight,
        )
    else:
        target = -float(spaces.actions) if target_entropy is None else target_entropy
        loss = SACLoss(
            actor, networks.make_action_value(), num_qvalue_nets=num_critics, target_entropy=target, **options
        )
    loss.make_value_estimator(gamma=gamma)
    terms = ("loss_actor", "loss_qvalue", "loss_alpha")
    return Algorithm(loss, actor, "make_stochastic_actor", terms, follow(loss, tau))


def td3(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    policy_noise: Annotated[float, Field(ge=0)] = 0.2,
    noise_clip: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """Twin delayed deterministic policy gradient (Fujimoto et al. 2018)."""
    from torchrl.objectives import TD3Loss

    return _make_td3(networks, "td3", TD3Loss, gamma, tau, policy_noise=policy_noise, noise_clip=noise_clip)


def td3_bc(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    alpha: Annotated[float, Field(gt=0)] = 2.5,
    policy_noise: Annotated[float, Field(ge=0)] = 0.2,
    noise_clip: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """TD3 with cloning of the data's actions: −λQ + (π − a)², λ = α / mean |Q| (Fujimoto and Gu 2021)."""
    from torchrl.objectives import TD3BCLoss

    options = {"alpha": alpha, "policy_noise": policy_noise, "noise_clip": noise_clip}
    return _make_td3(networks, "td3_bc", TD3BCLoss, gamma, tau, **options)


def _make_td3(networks: Networks, name: str, loss_class: Any, gamma: float, tau: float, **options: float) -> Algorithm:
    """Return TD3 or a loss derived from it; every second update trains the actor and moves the targets."""
    require_box(networks, name)
    actor = networks.make_deterministic_actor()
    loss = loss_class(actor, networks.make_action_value(), bounds=_bounds(networks), loss_function="l2", **options)
    loss.make_value_estimator(gamma=gamma)
    terms = ("loss_actor", "loss_qvalue")
    return Algorithm(loss, actor, "make_deterministic_actor", terms, follow(loss, tau), delayed=("actor_network",))


def iql(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7,
    temperature: Annotated[float, Field(ge=0)] = 3.0,
) -> Algorithm:
    """Implicit Q-learning: expectile values, and cloning weighted by exp(temperature · advantage) (Kostrikov 2021)."""
    from torchrl.objectives import IQLLoss

    require_box(networks, "iql")
    actor = networks.make_stochastic_actor()
    loss = IQLLoss(
        actor,
        networks.make_action_value(),
        networks.make_state_value(),
        loss_function="l2",
        expectile=expectile,
        temperature=temperature,
    )
    loss.make_value_estimator(gamma=gamma)
    terms = ("loss_actor", "loss_qvalue", "loss_value")
    return Algorithm(loss, actor, "make_stochastic_actor", terms, follow(loss, tau))


def cql(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    min_q_weight: Annotated[float, Field(ge=0)] = 1.0,
    num_random: Annotated[int, Field(ge=1)] = 10,
) -> Algorithm:
    """Conservative Q-learning: soft actor-critic that lowers values of actions not in the data (Kumar et al. 2020)."""
    from torchrl.objectives import CQLLoss

    require_box(networks, "cql")
    actor = networks.make_stochastic_actor()
    loss = CQLLoss(
        actor,
        networks.make_action_value(),
        target_entropy=-float(networks.spaces.actions),
        min_q_weight=min_q_weight,
        num_random=num_random,
        loss_function="l2",
    )
    loss.make_value_estimator(gamma=gamma)
    terms = ("loss_actor", "loss_qvalue", "loss_cql", "loss_alpha")
    return Algorithm(loss, actor, "make_stochastic_actor", terms, follow(loss, tau))


def bc(networks: Networks, *, stochastic: bool = True) -> Algorithm:
    """Behaviour cloning: the likelihood of the data's actions, or the squared error of one action (Pomerleau 1991)."""
    if not stochastic:
        require_box(networks, "bc")
    form = "make_stochastic_actor" if stochastic else "make_deterministic_actor"
    actor = getattr(networks, form)()
    return Algorithm(Cloning(actor), actor, form, ("loss_bc",))


class Cloning(nn.Module):
    """Loss of behaviour cloning; TorchRL's own has no likelihood of choices."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.actor_network = actor

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Return the term `loss_bc`."""
        return {"loss_bc": cloning(batch, self.actor_network)}


def ppo(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    lmbda: Share = 0.95,
    clip_epsilon: Annotated[float, Field(gt=0)] = 0.2,
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0,
    critic_coef: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """Proximal policy optimisation with clipping and generalised advantages (Schulman et al. 2017)."""
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    actor, critic = networks.make_stochastic_actor(), networks.make_state_value()
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=clip_epsilon,
        entropy_bonus=True,
        entropy_coeff=entropy_coef,
        critic_coeff=critic_coef,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    advantage = GAE(gamma=gamma, lmbda=lmbda, value_network=critic, average_gae=False)
    terms = ("loss_objective", "loss_critic", "loss_entropy")
    return Algorithm(loss, actor, "make_stochastic_actor", terms, advantage=advantage)


def a2c(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    lmbda: Share = 1.0,
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0,
    critic_coef: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """Advantage actor-critic (Mnih et al. 2016)."""
    from torchrl.objectives import A2CLoss
    from torchrl.objectives.value import GAE

    actor, critic = networks.make_stochastic_actor(), networks.make_state_value()
    loss = A2CLoss(actor, critic, entropy_coeff=entropy_coef, critic_coeff=critic_coef, loss_critic_type="l2")
    advantage = GAE(gamma=gamma, lmbda=lmbda, value_network=critic, average_gae=False)
    terms = ("loss_objective", "loss_critic", "loss_entropy")
    return Algorithm(loss, actor, "make_stochastic_actor", terms, advantage=advantage)


def follow(loss: Any, tau: float) -> Callable[[], None]:
    """Return what moves target networks by `tau` towards the trained ones."""
    from torchrl.objectives import SoftUpdate

    return SoftUpdate(loss, tau=tau).step


def _bounds(networks: Networks) -> Any:
    return (torch.tensor(networks.spaces.low), torch.tensor(networks.spaces.high))


def require_choices(networks: Networks, name: str) -> None:
    """Raise StepError unless the actions are choices."""
    if not networks.spaces.is_discrete:
        raise StepError(f"loss {name} needs choices; {networks.spaces.describe()}: use sac, td3 or ppo")


def require_box(networks: Networks, name: str) -> None:
    """Raise StepError unless the actions are numbers in a box."""
    if networks.spaces.is_discrete:
        raise StepError(f"loss {name} needs numbers in a box; {networks.spaces.describe()}: use dqn, sac, bc or ppo")
