"""Imitation with a learned reward: GAIL, adversarial inverse reinforcement learning, and inverse soft Q-learning.

A discriminator D(s, a) = σ(f) separates an expert's steps from the policy's own; `f` below is its logit. The rewards of
the world are not used. Shapes: B steps.
"""

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from learning.control.losses.standard import Algorithm, Share, ppo
from learning.control.networks.build import Networks
from schemas.errors import StepError

Inverse = tuple[Tensor, Tensor]
"""Rewards Q(s, a) − γ V(s') and differences V(s) − γ V(s'), each (C, B)."""


class Discriminator(nn.Module):
    """The logit f of a step: of observation and action."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.is_discrete = networks.spaces.is_discrete
        self.value = networks.make_values_of_choices() if self.is_discrete else networks.make_action_value()

    def forward(self, batch: Any) -> Tensor:
        """Return f (…, B)."""
        if self.is_discrete:
            values = self.value(batch.select("observation"))["action_value"]
            return values.gather(-1, batch["action"][..., None])[..., 0]
        return self.value(batch.select("observation", "action"))["state_action_value"][..., 0]


class ShapedDiscriminator(Discriminator):
    """The logit g(s, a) + γ h(s') − h(s) − log π(a|s), of which g is the reward without shaping."""

    def __init__(self, networks: Networks, gamma: float) -> None:
        super().__init__(networks)
        self.potential, self.gamma = networks.make_state_value(), gamma

    def compute_reward(self, batch: Any) -> Tensor:
        """Return g(s, a) + γ h(s') − h(s) (…, B); after the end of an episode h is 0."""
        now, after = (
            self.potential(steps.select("observation"))["state_value"][..., 0] for steps in (batch, batch["next"])
        )
        return super().forward(batch) + self.gamma * ~batch["next", "terminated"][..., 0] * after - now

    def forward(self, batch: Any) -> Tensor:
        """Return f (…, B); the batch has the policy's `action_log_prob`."""
        return self.compute_reward(batch) - batch["action_log_prob"]


def gail(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    lmbda: Share = 0.95,
    clip_epsilon: Annotated[float, Field(gt=0)] = 0.2,
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0,
    critic_coef: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """PPO on the reward −log(1 − D(s, a)) = log(1 + exp f) (Ho and Ermon 2016); `discriminate` trains D."""
    algorithm = ppo(
        networks,
        gamma=gamma,
        lmbda=lmbda,
        clip_epsilon=clip_epsilon,
        entropy_coef=entropy_coef,
        critic_coef=critic_coef,
    )
    return learn_reward(algorithm, Discriminator(networks), softplus)


def airl(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    lmbda: Share = 0.95,
    clip_epsilon: Annotated[float, Field(gt=0)] = 0.2,
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0,
    critic_coef: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """PPO on the reward log D − log(1 − D) = f, with a shaped discriminator (Fu et al. 2018)."""
    algorithm = ppo(
        networks,
        gamma=gamma,
        lmbda=lmbda,
        clip_epsilon=clip_epsilon,
        entropy_coef=entropy_coef,
        critic_coef=critic_coef,
    )
    return learn_reward(algorithm, ShapedDiscriminator(networks, gamma), lambda logit: logit)


def learn_reward(algorithm: Algorithm, discriminator: Discriminator, to_reward: Any) -> Algorithm:
    """Return an algorithm whose advantages are those of a discriminator's reward, made when a rollout is complete."""
    algorithm.loss.discriminator = discriminator

    def estimate(batch: Any) -> None:
        batch["next", "reward"] = to_reward(discriminator(batch))[..., None]
        algorithm.advantage(batch)

    return Algorithm(algorithm.loss, algorithm.actor, algorithm.actor_form, algorithm.terms, advantage=estimate)


def discriminate(batch: Any, data_batch: Any, loss: Any, actor: Any) -> Tensor:
    """Mean log(1 + exp −f) of the expert's steps and log(1 + exp f) of own ones: trains D of `gail` and `airl`."""
    if not hasattr(loss, "discriminator"):
        raise StepError("loss_terms: discriminate needs the discriminator of `loss: gail` or `loss: airl`")
    own, expert = (_add_log_prob(part, actor) for part in (batch, data_batch))
    return softplus(-loss.discriminator(expert)).mean() + softplus(loss.discriminator(own)).mean()


def _add_log_prob(batch: Any, actor: Any) -> Any:
    """Return a copy of a batch with the present policy's log-probabilities of its actions, without gradient."""
    with torch.no_grad():
        log_prob = actor.get_dist(batch.select("observation")).log_prob(batch["action"])
    return batch.select("observation", "action", "next").set("action_log_prob", log_prob)


def inverse_q(
    batch: Any,
    data_batch: Any,
    loss: Any,
    actor: Any,
    *,
    gamma: Share = 0.99,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    alpha: Annotated[float, Field(gt=0)] = 0.5,
) -> Tensor:
    """Inverse soft Q-learning in place of `loss` of dqn or `loss_qvalue` of sac (Garg et al. 2021, eqs. 9 and 10).

    −E_expert[φ(r)] + E[V(s) − γ V(s')], r = Q(s, a) − γ V(s') and φ(r) = r − r²/4α (Pearson's χ²); V is the soft value
    at `temperature`. The second mean is over the batch, which may hold the expert's steps and own ones.
    """
    if not hasattr(loss, "qvalue_network_params" if batch["action"].is_floating_point() else "value_network_params"):
        raise StepError("loss_terms: inverse_q replaces `loss` of dqn for choices, `loss_qvalue` of sac for numbers")
    reward, _ = measure(data_batch, loss, actor, gamma, temperature)
    _, difference = measure(batch, loss, actor, gamma, temperature)
    return (difference.mean(-1) + (reward.square() / (4 * alpha) - reward).mean(-1)).sum()


def measure(batch: Any, loss: Any, actor: Any, gamma: float, temperature: float) -> Inverse:
    """Return rewards and differences of values by each of C critics, with gradients for the critics alone."""
    following = batch["next"]
    goes_on = ~following["terminated"][..., 0]
    if hasattr(loss, "value_network"):
        taken = _choose_values(loss, batch).gather(-1, batch["action"][:, None])[:, 0]
        now, after = (
            temperature * (_choose_values(loss, steps) / temperature).logsumexp(-1) for steps in (batch, following)
        )
        taken, now, after = taken[None], now[None], after[None]
    else:
        taken = value_actions(loss, batch, batch["action"])
        now, after = (soft_values(loss, actor, steps, temperature) for steps in (batch, following))
    continued = gamma * goes_on * after
    return taken - continued, now - continued


def _choose_values(loss: Any, batch: Any) -> Tensor:
    """Return the values of all choices (B, choices) by the network of `dqn`."""
    shown = batch.select("observation")
    with loss.value_network_params.to_module(loss.value_network):
        return loss.value_network(shown)["action_value"]


def soft_values(loss: Any, actor: Any, batch: Any, temperature: float) -> Tensor:
    """Return Q(s, a) − t log π(a|s) of one action of the policy for each critic (C, B); the policy gets no gradient."""
    with torch.no_grad():
        policy = actor.get_dist(batch.select("observation"))
        action = policy.rsample()
        log_prob = policy.log_prob(action)
    return value_actions(loss, batch, action) - temperature * log_prob


def value_actions(loss: Any, batch: Any, action: Tensor) -> Tensor:
    """Return the values (C, B) of actions by the critics of `sac`, with gradients."""
    from tensordict import TensorDict

    params, values = loss.qvalue_network_params, []
    for critic in range(params.batch_size[0]):
        with params[critic].to_module(loss.qvalue_network):
            asked = TensorDict({"observation": batch["observation"], "action": action}, batch.shape)
            values.append(loss.qvalue_network(asked)["state_action_value"].squeeze(-1))
    return torch.stack(values)
