"""Counts of steps between numbered states, and tables in place of networks. Shapes: S states, A actions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from schemas.errors import StepError

Kept = Mapping[str, Tensor]
"""Columns of all kept steps."""


@dataclass(frozen=True)
class Counts:
    """How often each action was taken in each state, the rewards of it together, and where it led without an end."""

    visits_SA: np.ndarray
    reward_SA: np.ndarray
    next_SAS: np.ndarray


def find_states(observation_BO: Tensor) -> np.ndarray:
    """Return the numbers of one-hot observations (B,). Raise StepError for others."""
    if not ((observation_BO == 1).sum(-1) == 1).all() or not (observation_BO.sum(-1) == 1).all():
        raise StepError("planning by counts needs observations that are numbers of states, as those of `finite`")
    return observation_BO.argmax(-1).numpy()


def count_steps(kept: Kept, spaces: Spaces) -> Counts:
    """Return the counts of all kept steps."""
    before_B, after_B = (find_states(kept[name]) for name in ("observation", "next_observation"))
    action_B, reward_B = kept["action"].numpy(), kept["reward"][:, 0].double().numpy()
    visits_SA = np.zeros((spaces.observations, spaces.actions))
    reward_SA, next_SAS = np.zeros_like(visits_SA), np.zeros((*visits_SA.shape, spaces.observations))
    np.add.at(visits_SA, (before_B, action_B), 1)
    np.add.at(reward_SA, (before_B, action_B), reward_B)
    goes_on = ~kept["terminated"][:, 0].numpy()
    np.add.at(next_SAS, (before_B[goes_on], action_B[goes_on], after_B[goes_on]), 1)
    return Counts(visits_SA, reward_SA, next_SAS)


def require_tables(networks: Networks, name: str) -> None:
    """Raise StepError unless the networks are tables of choices."""
    if not networks.spaces.is_discrete or networks.settings.hidden_sizes:
        raise StepError(
            f"loss {name} plans with tables of choices, and has {networks.settings.hidden_sizes} hidden layers for "
            f"{networks.spaces.describe()}: set `networks: {{hidden_sizes: []}}`"
        )


def read_table(actor: Any) -> np.ndarray:
    """Return the table (S, A) of an actor with a single layer."""
    (layer,) = (module for module in actor.modules() if isinstance(module, nn.Linear))
    return (layer.weight.detach() + layer.bias.detach()[:, None]).T.double().numpy()


def write_table(actor: Any, value_SA: np.ndarray) -> None:
    """Make an actor with a single layer a table (S, A)."""
    (layer,) = (module for module in actor.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(value_SA.T))
        layer.bias.zero_()


class Planned(nn.Module):
    """The networks of an algorithm that plans instead of taking gradient steps on a loss."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.actor_network = actor
