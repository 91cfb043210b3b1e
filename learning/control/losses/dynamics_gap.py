"""Learning from real steps and a simulator whose dynamics differ, with less trust where they do (Niu et al. 2022).

Shapes: B steps, C critics, K drawn next observations of a step.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from learning.control.buffers.buffer import Buffer
from learning.control.losses.critics import predict_action_values
from learning.control.losses.imitation import value_actions
from learning.control.losses.standard import Algorithm, Share, require_box, sac
from learning.control.networks.build import ACTIVATIONS, Networks
from schemas.errors import StepError

SMALLEST_GAP, LARGEST_GAP = 1e-6, 10.0
SMALLEST_RATIO, LARGEST_RATIO = 1e-5, 1.0


class RealOrSimulated(nn.Module):
    """Logits that a step is real: by its observation and action, and by the next observation, too."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        spaces, settings = networks.spaces, networks.settings

        def make_network(inputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for size in settings.hidden_sizes:
                layers += [nn.Linear(inputs, size), ACTIVATIONS[settings.activation]()]
                inputs = size
            return nn.Sequential(*layers, nn.Linear(inputs, 1))

        self.start = make_network(spaces.observations + spaces.actions)
        self.change = make_network(2 * spaces.observations + spaces.actions)

    def forward(self, observation: Tensor, action: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (...,) without and with the next observation; their difference is log P_real / P_sim."""
        start = self.start(torch.cat([observation, action], -1))[..., 0]
        return start, start + self.change(torch.cat([observation, action, following], -1))[..., 0]


def gap_aware_sac(
    networks: Networks,
    *,
    gamma: Share = 0.99,
    tau: Share = 0.005,
    num_critics: Annotated[int, Field(ge=1)] = 2,
    real_share: Annotated[float, Field(gt=0, lt=1)] = 0.5,
) -> Algorithm:
    """Soft actor-critic on batches of which `real_share` is `data`, the rest steps in a simulator (Niu et al. 2022).

    The terms `gap_corrected`, `gap_penalty` and `tell_apart` train the critics and what tells real from simulated.
    """
    require_box(networks, "gap_aware_sac")
    algorithm = sac(networks, gamma=gamma, tau=tau, num_critics=num_critics)
    algorithm.loss.real_or_simulated = RealOrSimulated(networks)

    def draw(parts: Sequence[Buffer], count: int) -> Any:
        if len(parts) != 2:
            raise StepError("loss gap_aware_sac: it needs real steps as `data`, and `environment_steps` in a simulator")
        real = round(count * real_share)
        drawn = [
            part.make_batch(torch.randint(len(part), (rows,)))
            for part, rows in zip(parts, (real, count - real), strict=True)
        ]
        batch: Any = torch.cat(drawn)
        batch["is_real"] = torch.arange(count) < real
        return batch

    return Algorithm(
        algorithm.loss, algorithm.actor, algorithm.actor_form, algorithm.terms, algorithm.update_targets, draw=draw
    )


def split_steps(batch: Any, loss: Any) -> tuple[Any, Any]:
    """Return the real and the simulated steps of a batch. Raise StepError for batches of other losses."""
    if not hasattr(loss, "real_or_simulated"):
        raise StepError("loss_terms: a dynamics gap needs the networks and batches of `loss: gap_aware_sac`")
    return batch[batch["is_real"]], batch[~batch["is_real"]]


def find_log_ratio(loss: Any, batch: Any, following: Tensor) -> Tensor:
    """Return log P_real(s'|s, a) / P_sim(s'|s, a) = logit D(s, a, s') − logit D(s, a), without gradient."""
    with torch.no_grad():
        start, whole = loss.real_or_simulated(batch["observation"], batch["action"], following)
    return whole - start


def tell_apart(batch: Any, loss: Any, *, noise: Annotated[float, Field(ge=0)] = 0.1) -> Tensor:
    """Train the discriminators: −log D of real and −log(1 − D) of simulated steps, each a mean, both sums.

    `noise` is the deviation of what is added to their inputs.
    """
    losses = []
    for part, sign in zip(split_steps(batch, loss), (-1, 1), strict=True):
        shown = (part["observation"], part["action"], part["next", "observation"])
        logits = loss.real_or_simulated(*(one + noise * torch.randn_like(one) for one in shown))
        losses += [softplus(sign * logit).mean() for logit in logits]
    return torch.stack(losses).sum()


def gap_corrected(batch: Any, loss: Any, actor: Any, *, gamma: Share = 0.99) -> Tensor:
    """Loss of the critics in place of `loss_qvalue` of sac: mean squared errors of real steps, and of simulated ones.

    Those of simulated steps are weighted by P_real / P_sim of the next observation, at most 1. Targets have no entropy.
    Summed over critics. (Niu et al. 2022.)
    """
    total = torch.zeros(())
    for part, is_real in zip(split_steps(batch, loss), (True, False), strict=True):
        following = part["next"]
        with torch.no_grad():
            action = actor.get_dist(following.select("observation")).sample()
            value_B = predict_action_values(loss, following, action, target=True).min(0).values
            target_B = following["reward"][..., 0] + gamma * ~following["terminated"][..., 0] * value_B
        error_CB = (value_actions(loss, part, part["action"]) - target_B).square()
        weight_B = torch.ones(len(part))
        if not is_real:
            ratio_B = find_log_ratio(loss, part, following["observation"]).exp()
            weight_B = ratio_B.clamp(SMALLEST_RATIO, LARGEST_RATIO)
        total = total + (weight_B * error_CB).mean(-1).sum()
    return total


def measure_gap(loss: Any, real: Any, simulated: Any, samples: int, spread: float) -> Tensor:
    """Return the mean of log P_sim / P_real (B,) over next observations near the simulated ones, from 1e−6 to 10.

    They are drawn around them with `spread` times the deviations of real observations.
    """
    deviation_O = spread * real["observation"].std(0, correction=0)
    following = simulated["next", "observation"].expand(samples, *simulated["observation"].shape)
    drawn = following + deviation_O * torch.randn_like(following)
    shown = {name: simulated[name].expand(samples, *simulated[name].shape) for name in ("observation", "action")}
    return (-find_log_ratio(loss, shown, drawn)).mean(0).clamp(SMALLEST_GAP, LARGEST_GAP)


def weigh_values(value_CB: Tensor, gap_B: Tensor) -> Tensor:
    """Return log Σ w exp Q (C,) with weights in proportion to gaps."""
    return (value_CB + (gap_B / gap_B.sum()).log()).logsumexp(-1)


def gap_penalty(
    batch: Any,
    loss: Any,
    *,
    samples: Annotated[int, Field(ge=1)] = 10,
    spread: Annotated[float, Field(ge=0)] = 1.0,
) -> Tensor:
    """Lower values where the simulator errs: log Σ w exp Q of simulated steps − mean Q of real ones, for all critics.

    w is the share of a step in the dynamics gap of the batch. (Niu et al. 2022.)
    """
    real, simulated = split_steps(batch, loss)
    gap_B = measure_gap(loss, real, simulated, samples, spread)
    of_simulated, of_real = (value_actions(loss, part, part["action"]) for part in (simulated, real))
    return (weigh_values(of_simulated, gap_B) - of_real.mean(-1)).sum()
