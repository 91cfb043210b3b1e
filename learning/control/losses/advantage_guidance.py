"""Offline learning whose policy stays near actions with a high advantage alone (A2PR, Liu et al. 2024).

A model of the data's better actions proposes actions; the policy is drawn to the better one of proposal and data.
Shapes: B steps, A numbers of an action, L of a latent vector.
"""

from itertools import pairwise
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from learning.control.losses.critics import predict_action_values
from learning.control.losses.standard import Algorithm, Share, td3_bc
from learning.control.networks.build import ACTIVATIONS, Networks
from schemas.errors import StepError

LOWEST, HIGHEST = -4.0, 15.0
"""Bounds of the logarithm of a latent vector's deviation."""


class ActionModel(nn.Module):
    """A variational autoencoder of actions, given the observation; latent vectors are Gaussian."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        spaces, settings = networks.spaces, networks.settings
        self.latents = 2 * spaces.actions

        def make_layers(inputs: int, outputs: int) -> nn.Sequential:
            sizes, layers = [inputs, *settings.hidden_sizes], []
            for before, after in pairwise(sizes):
                layers += [nn.Linear(before, after), ACTIVATIONS[settings.activation]()]
            return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))

        self.encoder = make_layers(spaces.observations + spaces.actions, 2 * self.latents)
        self.decoder = make_layers(spaces.observations + self.latents, spaces.actions)
        self.register_buffer("low", torch.tensor(spaces.low))
        self.register_buffer("high", torch.tensor(spaces.high))

    def forward(self, observation_BO: Tensor, action_BA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions made from latent vectors of the given ones, and these vectors' means and log deviations."""
        mean_BL, spread_BL = self.encoder(torch.cat([observation_BO, action_BA], -1)).chunk(2, -1)
        spread_BL = spread_BL.clamp(LOWEST, HIGHEST)
        latent_BL = mean_BL + spread_BL.exp() * torch.randn_like(spread_BL)
        share_BA = (self.decoder(torch.cat([observation_BO, latent_BL], -1)).tanh() + 1) / 2
        low, high = self.get_buffer("low"), self.get_buffer("high")
        return low + share_BA * (high - low), mean_BL, spread_BL


def guided_td3_bc(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    policy_noise: Annotated[float, Field(ge=0)] = 0.2,
    noise_clip: Annotated[float, Field(ge=0)] = 0.5,
) -> Algorithm:
    """TD3's critics, with a state value and a model of the data's better actions beside them (Liu et al. 2024).

    The terms `toward_better`, `likelihood_of_better` and `value_of_policy` train actor, model and state value.
    """
    algorithm = td3_bc(networks, gamma=gamma, tau=tau, policy_noise=policy_noise, noise_clip=noise_clip)
    algorithm.loss.action_model = ActionModel(networks)
    algorithm.loss.state_value = networks.make_state_value()
    return algorithm


def value_states(loss: Any, batch: Any) -> Tensor:
    """Return V(s) of a batch (B,), with gradients. Raise StepError for losses without a model of better actions."""
    if not hasattr(loss, "action_model"):
        raise StepError("loss_terms: guidance by advantages needs the model that `loss: guided_td3_bc` has")
    return loss.state_value(batch.select("observation"))["state_value"].squeeze(-1)


def choose_better(
    made_BA: Tensor, of_made_B: Tensor, taken_BA: Tensor, of_taken_B: Tensor, value_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the action with the higher value of two (B, A), and whether either is an advantage over V(s) (B,).

    With equal values it is the one that was made.
    """
    better_BA = torch.where((of_made_B >= of_taken_B)[:, None], made_BA, taken_BA)
    return better_BA, (of_made_B >= value_B) | (of_taken_B > value_B)


def toward_better(batch: Any, loss: Any, actor: Any, *, alpha: Annotated[float, Field(gt=0)] = 2.5) -> Tensor:
    """Loss of the actor in place of `loss_actor`: −λ Q(s, π) + 1[an advantage] (π − ã)², λ = alpha / mean |Q|.

    ã is what the model makes of π(s) if its value is at least that of the data's action, else the data's action. Where
    neither has an advantage, nothing holds the policy. (Liu et al. 2024.)
    """
    action_BA = actor(batch.select("observation"))["action"]
    value_B = predict_action_values(loss, batch, action_BA)[0]
    with torch.no_grad():
        made_BA, _, _ = loss.action_model(batch["observation"], action_BA)
        of_made_B, of_taken_B = (predict_action_values(loss, batch, one)[0] for one in (made_BA, batch["action"]))
        better_BA, gains_B = choose_better(made_BA, of_made_B, batch["action"], of_taken_B, value_states(loss, batch))
    held = (gains_B[:, None] * (action_BA - better_BA).square()).mean()
    return held - alpha / value_B.abs().mean().detach() * value_B.mean()


def likelihood_of_better(batch: Any, loss: Any, *, divergence_weight: Annotated[float, Field(ge=0)] = 0.5) -> Tensor:
    """Loss of the model of actions: the mean of 1[Q(s, a) > V(s)] ((made − a)² + weight · KL to a standard Gaussian).

    Rows whose action has no advantage train nothing. (Liu et al. 2024.)
    """
    with torch.no_grad():
        gains_B = predict_action_values(loss, batch, batch["action"])[0] > value_states(loss, batch)
    made_BA, mean_BL, spread_BL = loss.action_model(batch["observation"], batch["action"])
    divergence_B = (mean_BL.square() + (2 * spread_BL).exp() - 1 - 2 * spread_BL).mean(-1) / 2
    return (gains_B * ((made_BA - batch["action"]).square().mean(-1) + divergence_weight * divergence_B)).mean()


def value_of_policy(
    batch: Any,
    loss: Any,
    *,
    gamma: Share = 0.99,
    policy_noise: Annotated[float, Field(ge=0)] = 0.2,
    noise_clip: Annotated[float, Field(ge=0)] = 0.5,
) -> Tensor:
    """Squared error of V(s) from r + γ min Q(s', ã'), over all critics and their targets; ã' is TD3's noisy action.

    (Liu et al. 2024.)
    """
    following = batch["next"]
    with torch.no_grad():
        with loss.target_actor_network_params.to_module(loss.actor_network):
            next_BA = loss.actor_network(following.select("observation"))["action"]
        noise_BA = (torch.randn_like(next_BA) * policy_noise).clamp(-noise_clip, noise_clip)
        next_BA = torch.minimum(torch.maximum(next_BA + noise_BA, loss.min_action), loss.max_action)
        both = [predict_action_values(loss, following, next_BA, target=target) for target in (False, True)]
        goes_on_B = ~following["terminated"][..., 0]
        target_B = following["reward"][..., 0] + gamma * goes_on_B * torch.cat(both).min(0).values
    return (value_states(loss, batch) - target_B).square().mean()
