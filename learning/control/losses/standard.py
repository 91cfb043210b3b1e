"""Algorithms of kind control: TorchRL's losses with their networks, target updates and ways to act."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from learning.control.buffers.buffer import Buffer
from learning.control.losses.terms import cloning
from learning.control.networks.build import Networks
from schemas.errors import StepError

Share = Annotated[float, Field(ge=0, le=1)]
NO_ENTROPY = 1e-12
"""Temperature in place of 0; TorchRL takes its logarithm."""


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
    """Beginnings of the names of parameters that only every `period`-th optimiser step trains."""
    period: int = 2
    delays_targets: bool = True
    """Whether that step alone moves the target networks, as in TD3."""
    fit: Callable[[Mapping[str, Tensor], np.random.Generator], dict[str, float]] | None = None
    """Changes the actor by all kept steps and returns metrics, in place of gradient steps on the loss."""
    fits_each: Literal["step", "episode"] = "episode"
    updates_per_fit: int = 1
    fit_newest: Callable[[Any, Mapping[str, Tensor] | None, np.random.Generator], dict[str, float]] | None = None
    """Changes the actor by the newest steps (N, S) and all data, and returns metrics, in place of gradient steps."""
    draw: Callable[[Sequence[Buffer], int], Any] | None = None
    """Returns a batch of a number of rows from the kept steps; None: steps are drawn evenly, or by priorities."""
    is_for_teams: bool = False
    """Whether it trains several agents who act at once."""
    is_offline: bool = False
    """Whether it trains on data of others alone."""
    error_power: int = 0
    """The loss writes its errors |δ| to this power, and weights them by `priority_weight`; 0: it does neither."""

    @property
    def is_on_policy(self) -> bool:
        """Return whether it is trained on the newest steps alone."""
        return self.advantage is not None or self.fit_newest is not None


def dqn(networks: Networks, *, gamma: Share = 0.99, tau: Share = 0.005, double: bool = True) -> Algorithm:
    """Deep Q-learning with a target network, by default with double Q-learning (Mnih et al. 2015, van Hasselt 2016)."""
    from torchrl.objectives import DQNLoss

    require_choices(networks, "dqn")
    actor = networks.make_choice_values()
    loss = DQNLoss(actor, action_space="categorical", double_dqn=double, delay_value=True)
    loss.make_value_estimator(gamma=gamma)
    return Algorithm(loss, actor, "make_choice_values", ("loss",), follow(loss, tau), error_power=2)


def sac(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    num_critics: Annotated[int, Field(ge=1)] = 2,
    alpha: Annotated[float, Field(ge=0)] = 1.0,
    fixed_alpha: bool = False,
    target_entropy: float | None = None,
) -> Algorithm:
    """Soft actor-critic; the temperature keeps the entropy at `target_entropy` (Haarnoja et al. 2018).

    `alpha` is the first temperature, or with `fixed_alpha` the only one, which may be 0. Without a target it
    is −1 per number of an action, or 98 % of the largest entropy of choices (Christodoulou 2019).
    """
    from torchrl.objectives import DiscreteSACLoss, SACLoss

    actor, spaces = networks.make_stochastic_actor(), networks.spaces
    options = _set_temperature(alpha, fixed_alpha)
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
    return Algorithm(loss, actor, "make_stochastic_actor", terms, follow(loss, tau), error_power=1)


def _set_temperature(alpha: float, fixed_alpha: bool) -> dict[str, Any]:
    """Return TorchRL's options for a first temperature. Raise StepError for one of 0 that is adapted."""
    if alpha == 0 and not fixed_alpha:
        raise StepError("loss: a temperature `alpha` of 0 cannot be adapted; set `fixed_alpha: true`")
    return {"alpha_init": max(alpha, NO_ENTROPY), "fixed_alpha": fixed_alpha, "loss_function": "l2"}


def redq(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    num_critics: Annotated[int, Field(ge=2)] = 10,
    subset: Annotated[int, Field(ge=1)] = 2,
    alpha: Annotated[float, Field(ge=0)] = 1.0,
    fixed_alpha: bool = False,
    target_entropy: float | None = None,
    actor_period: Annotated[int, Field(ge=1)] = 20,
) -> Algorithm:
    """Soft actor-critic with many critics, for many updates per step (REDQ, Chen et al. 2021; RLPD, Ball et al. 2023).

    Targets take the smallest of a random `subset` of the critics, the actor their mean. Every `actor_period`-th update
    trains the actor and the temperature.
    """
    from torchrl.objectives import REDQLoss

    require_box(networks, "redq")
    if subset >= num_critics:
        raise StepError(f"loss redq: subset {subset} must be smaller than num_critics {num_critics}")
    actor = networks.make_stochastic_actor()
    target: Any = -float(networks.spaces.actions) if target_entropy is None else target_entropy
    loss = REDQLoss(
        actor,
        networks.make_action_value(),
        num_qvalue_nets=num_critics,
        sub_sample_len=subset,
        target_entropy=target,
        min_alpha=NO_ENTROPY,
        max_alpha=math.inf,
        **_set_temperature(alpha, fixed_alpha),
    )
    loss.make_value_estimator(gamma=gamma)
    return Algorithm(
        loss,
        actor,
        "make_stochastic_actor",
        ("loss_actor", "loss_qvalue", "loss_alpha"),
        follow(loss, tau),
        delayed=("actor_network", "log_alpha"),
        period=actor_period,
        delays_targets=False,
    )


def ddpg(networks: Networks, *, gamma: Share = 0.99, tau: Share = 0.005) -> Algorithm:
    """Deep deterministic policy gradient: one critic, and the actor that raises it (Lillicrap et al. 2016)."""
    from torchrl.objectives import DDPGLoss

    require_box(networks, "ddpg")
    actor = networks.make_deterministic_actor()
    value = networks.make_action_value()
    loss = DDPGLoss(actor, value, loss_function="l2", delay_actor=True, delay_value=True)
    loss.make_value_estimator(gamma=gamma)
    return Algorithm(loss, actor, "make_deterministic_actor", ("loss_actor", "loss_value"), follow(loss, tau))


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
    power = 2 if name == "td3" else 0
    move = follow(loss, tau)
    return Algorithm(
        loss, actor, "make_deterministic_actor", terms, move, delayed=("actor_network",), error_power=power
    )


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
