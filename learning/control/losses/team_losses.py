"""Losses for teams, on TorchRL's networks, mixers and losses: VDN, QMIX, and PPO with critics of one agent or all."""

from typing import Annotated, Any

from pydantic import Field

from learning.control.losses.standard import Algorithm, Cloning, Share, follow
from learning.control.networks.build import Networks
from schemas.errors import StepError


def vdn(networks: Networks, *, gamma: Share = 0.99, tau: Share = 0.005) -> Algorithm:
    """Value decomposition: the team's value is the sum of its agents' values (Sunehag et al. 2018)."""
    from torchrl.modules import VDNMixer

    require_team(networks, "vdn")
    return _mix(networks, VDNMixer(n_agents=networks.spaces.agents, device="cpu"), ["chosen_action_value"], gamma, tau)


def qmix(
    networks: Networks, *, gamma: Share = 0.99, tau: Share = 0.005, mixing_size: Annotated[int, Field(ge=1)] = 32
) -> Algorithm:
    """Monotonic value factorisation: the team's value rises with each agent's, by weights from what all see.

    |W(s)| and biases come from the observations of all agents (Rashid et al. 2018).
    """
    from torchrl.modules import QMixer

    require_team(networks, "qmix")
    spaces = networks.spaces
    mixer = QMixer(
        state_shape=(spaces.observations,), mixing_embed_dim=mixing_size, n_agents=spaces.agents, device="cpu"
    )
    return _mix(networks, mixer, ["chosen_action_value", "observation"], gamma, tau)


def _mix(networks: Networks, mixer: Any, reads: Any, gamma: float, tau: float) -> Algorithm:
    """Return Q-learning of a team's value that a mixer makes of the values of its agents' choices."""
    from tensordict.nn import TensorDictModule
    from torchrl.objectives.multiagent import QMixerLoss

    actor = networks.make_team_values()
    mixing = TensorDictModule(mixer, reads, ["team_value"])
    loss: Any = QMixerLoss(actor, mixing, action_space="categorical", delay_value=True, loss_function="l2")
    loss.set_keys(
        local_value="chosen_action_value", global_value="team_value", action="action", action_value="action_value"
    )
    loss.make_value_estimator(gamma=gamma)
    return Algorithm(loss, actor, "make_team_values", ("loss",), follow(loss, tau), is_for_teams=True)


def team_bc(networks: Networks) -> Algorithm:
    """Behaviour cloning of every agent by itself: the likelihood of its choices in the data."""
    require_team(networks, "team_bc")
    actor = networks.make_team_actor()
    return Algorithm(Cloning(actor), actor, "make_team_actor", ("loss_bc",), is_for_teams=True)


def ippo(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    lmbda: Share = 0.95,
    clip_epsilon: Annotated[float, Field(gt=0)] = 0.2,
    entropy_coef: Annotated[float, Field(ge=0)] = 0.01,
    critic_coef: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """PPO of each agent by itself, with a critic of what it sees (de Witt et al. 2020)."""
    from torchrl.objectives.multiagent import IPPOLoss

    return _clip(networks, "ippo", IPPOLoss, False, gamma, lmbda, clip_epsilon, entropy_coef, critic_coef)


def mappo(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    lmbda: Share = 0.95,
    clip_epsilon: Annotated[float, Field(gt=0)] = 0.2,
    entropy_coef: Annotated[float, Field(ge=0)] = 0.01,
    critic_coef: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """PPO of each agent, with critics of what all see (Yu et al. 2022); values are not normalised."""
    from torchrl.objectives.multiagent import MAPPOLoss

    return _clip(networks, "mappo", MAPPOLoss, True, gamma, lmbda, clip_epsilon, entropy_coef, critic_coef)


def _clip(
    networks: Networks,
    name: str,
    loss_class: Any,
    central: bool,
    gamma: float,
    lmbda: float,
    clip_epsilon: float,
    entropy_coef: float,
    critic_coef: float,
) -> Algorithm:
    """Return PPO of a team whose critics see one agent's observation, or all."""
    from torchrl.objectives.value import MultiAgentGAE

    require_team(networks, name)
    actor, critic = networks.make_team_actor(), networks.make_team_critic(central=central)
    loss = loss_class(
        actor,
        critic,
        clip_epsilon=clip_epsilon,
        entropy_coeff=entropy_coef,
        critic_coeff=critic_coef,
        loss_critic_type="l2",
    )
    advantage = MultiAgentGAE(gamma=gamma, lmbda=lmbda, value_network=critic, average_gae=False)
    terms = ("loss_objective", "loss_critic", "loss_entropy")
    return Algorithm(loss, actor, "make_team_actor", terms, advantage=advantage, is_for_teams=True)


def require_team(networks: Networks, name: str) -> None:
    """Raise StepError unless several agents act."""
    if networks.spaces.agents < 2:
        raise StepError(f"loss {name} needs several agents; {networks.spaces.describe()}: use dqn or ppo")
