"""Learned models of a world, and soft actor-critic on short branches of them (MBPO, Janner et al. 2019).

Shapes: M models, B steps, O numbers of an observation, A of an action, P = O + 1 predicted numbers: changes of the
observation, and the reward.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from learning.control.buffers.buffer import Buffer, make_batch
from learning.control.losses.standard import Algorithm, Share, require_box, sac
from learning.control.networks.build import ACTIVATIONS, Networks
from schemas.errors import StepError


class Dynamics(nn.Module):
    """Models that predict Gaussians of the change of the observation and of the reward, and the chance of an end."""

    def __init__(self, networks: Networks, models: int) -> None:
        super().__init__()
        spaces, settings = networks.spaces, networks.settings
        self.predicted = spaces.observations + 1
        sizes = [spaces.observations + spaces.actions, *settings.hidden_sizes, 2 * self.predicted + 1]
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList([nn.Parameter(_draw(inputs, models, inputs, n)) for inputs, n in pairs])
        self.biases = nn.ParameterList([nn.Parameter(_draw(inputs, models, 1, n)) for inputs, n in pairs])
        self.activation = ACTIVATIONS[settings.activation]()
        self.highest = nn.Parameter(torch.full((self.predicted,), 0.5))
        self.lowest = nn.Parameter(torch.full((self.predicted,), -10.0))
        self.register_buffer("shift", torch.full((sizes[0],), torch.nan))
        self.register_buffer("width", torch.ones(sizes[0]))

    def fit_scales(self, columns: dict[str, Tensor]) -> None:
        """Take the means and deviations of the inputs from the first kept steps, and keep them."""
        if self.get_buffer("shift").isnan().any():
            given = torch.cat([columns["observation"], columns["action"]], -1)
            deviation = given.std(0, correction=0)
            self.get_buffer("shift").copy_(given.mean(0))
            self.get_buffer("width").copy_(torch.where(deviation > 1e-6, deviation, 1.0))

    def forward(self, observation_MBO: Tensor, action_MBA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means and logarithms of variances (M, B, P), and logits of an end (M, B), by each model.

        The logarithms lie between two learned bounds (Chua et al. 2018).
        """
        x = (torch.cat([observation_MBO, action_MBA], -1) - self.get_buffer("shift")) / self.get_buffer("width")
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, self.activation(x) if layer else x, weight)
        mean, spread, end = x.split([self.predicted, self.predicted, 1], -1)
        spread = self.highest - softplus(self.highest - spread)
        return mean, self.lowest + softplus(spread - self.lowest), end[..., 0]

    def draw_next(self, observation_BO: Tensor, action_BA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return next observations (B, O), rewards (B, 1) and ends (B, 1), each row by a model drawn evenly."""
        models, rows = len(self.weights[0]), len(observation_BO)
        shown, done = (part.expand(models, *part.shape) for part in (observation_BO, action_BA))
        mean, log_variance, end = self(shown, done)
        chosen = torch.randint(models, (rows,)), torch.arange(rows)
        drawn_BP = mean[chosen] + (0.5 * log_variance[chosen]).exp() * torch.randn(rows, self.predicted)
        ended_B1 = torch.rand(rows, 1) < end[chosen].sigmoid()[:, None]
        return observation_BO + drawn_BP[:, :-1], drawn_BP[:, -1:], ended_B1


def _draw(inputs: int, *shape: int) -> Tensor:
    """Return parameters of a layer as PyTorch draws them: evenly within 1 / √inputs."""
    return (2 * torch.rand(*shape) - 1) / inputs**0.5


def dynamics_likelihood(batch: Any, loss: Any, *, bound_weight: Annotated[float, Field(ge=0)] = 0.01) -> Tensor:
    """−log p of the real steps of a batch of `mbpo` by each model, summed over models: trains the models.

    To it comes `bound_weight` times the distance of the learned bounds of the variances (Chua et al. 2018).
    """
    if "real" not in batch.keys():  # noqa: SIM118 — a TensorDict's `in` is another question
        raise StepError("loss_terms: dynamics_likelihood trains the models of `loss: mbpo`")
    dynamics, real = loss.dynamics, batch["real"].transpose(0, 1)
    following = real["next"]
    mean, log_variance, end = dynamics(real["observation"], real["action"])
    target = torch.cat([following["observation"] - real["observation"], following["reward"]], -1)
    gaussian = ((target - mean).square() * (-log_variance).exp() + log_variance + LOG_TWO_PI).sum(-1) / 2
    ended = binary_cross_entropy_with_logits(end, following["terminated"][..., 0].float(), reduction="none")
    return (gaussian + ended).mean(1).sum() + bound_weight * (dynamics.highest - dynamics.lowest).sum()


LOG_TWO_PI = 1.8378770664093453


def mbpo(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    num_critics: Annotated[int, Field(ge=1)] = 2,
    alpha: Annotated[float, Field(ge=0)] = 1.0,
    fixed_alpha: bool = False,
    target_entropy: float | None = None,
    models: Annotated[int, Field(ge=1)] = 5,
    rollout_length: Annotated[int, Field(ge=1)] = 1,
    real_share: Share = 0.05,
) -> Algorithm:
    """Soft actor-critic on steps of learned models that branch off kept steps (MBPO, Janner et al. 2019).

    Each batch is made when it is used: from kept observations the present policy takes `rollout_length` steps in
    models drawn for each step; `real_share` of the batch are kept steps. The term `dynamics_likelihood` trains all
    models at each update, each on a batch of its own.
    """
    require_box(networks, "mbpo")
    algorithm = sac(
        networks,
        gamma=gamma,
        tau=tau,
        num_critics=num_critics,
        alpha=alpha,
        fixed_alpha=fixed_alpha,
        target_entropy=target_entropy,
    )
    dynamics = algorithm.loss.dynamics = Dynamics(networks, models)

    def draw(parts: Sequence[Buffer], count: int) -> Any:
        if dynamics.get_buffer("shift").isnan().any():
            kept = [part.save() for part in parts]
            dynamics.fit_scales({name: torch.cat([part[name] for part in kept]) for name in kept[0]})
        wanted = round(count * (1 - real_share))
        starts = _draw_steps(parts, -(-wanted // rollout_length))["observation"]
        imagined = imagine(dynamics, algorithm.actor, starts, rollout_length)[:wanted]
        batch: Any = torch.cat([imagined, _draw_steps(parts, count - len(imagined))])
        batch["real"] = _draw_steps(parts, count * models).reshape(count, models)
        return batch

    return Algorithm(
        algorithm.loss, algorithm.actor, algorithm.actor_form, algorithm.terms, algorithm.update_targets, draw=draw
    )


def imagine(dynamics: Dynamics, actor: Any, observation_BO: Tensor, length: int) -> Any:
    """Return steps that a policy takes in the models, as a batch; a branch that ends has no further steps."""
    from tensordict import TensorDict

    steps = []
    with torch.no_grad():
        for _ in range(length):
            action = actor.get_dist(TensorDict({"observation": observation_BO}, [len(observation_BO)])).sample()
            after, reward, ended = dynamics.draw_next(observation_BO, action)
            columns = {"observation": observation_BO, "action": action, "reward": reward, "next_observation": after}
            steps.append(make_batch({**columns, "terminated": ended, "truncated": torch.zeros_like(ended)}))
            observation_BO = after[~ended[:, 0]]
    return torch.cat(steps)


def _draw_steps(parts: Sequence[Buffer], count: int) -> Any:
    """Return kept steps, all equally likely."""
    place_B = torch.randint(sum(len(part) for part in parts), (count,))
    if len(parts) == 1:
        return parts[0].make_batch(place_B)
    first, second = parts
    is_first_B = place_B < len(first)
    joined = torch.cat([first.make_batch(place_B[is_first_B]), second.make_batch(place_B[~is_first_B] - len(first))])
    return joined[torch.randperm(count)]
