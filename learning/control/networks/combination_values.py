"""Values of combinations of interventions, and the program that finds the best of what limits allow.

A rectified unit y = max(0, w·x + b) with bounds l ≤ w·x + b ≤ u is y ≥ w·x + b, y ≤ u z, y ≤ w·x + b − l (1 − z) for
a z of 0 or 1. Shapes: B steps, O numbers of an observation, G arms, C limits, H units of a
layer, V variables of the program.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from schemas.errors import StepError

Layer = tuple[np.ndarray, np.ndarray]
"""Weights (H, inputs) and biases (H,)."""
SLACK = 1e-9


@dataclass(frozen=True)
class Limits:
    """Combinations with weight · action ≤ most are feasible."""

    weight_CG: np.ndarray
    most_C: np.ndarray

    def allow(self, action_G: np.ndarray) -> bool:
        """Return whether a combination is feasible."""
        return bool((self.weight_CG @ action_G <= self.most_C + SLACK).all())


def find_bounds(layers: Sequence[Layer], size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return bounds of what each layer computes before it is rectified, for inputs (size,) from 0 to 1."""
    low, high, bounds = np.zeros(size), np.ones(size), []
    for weight, bias in layers:
        up, down = weight.clip(min=0), weight.clip(max=0)
        bounds.append((up @ low + down @ high + bias, up @ high + down @ low + bias))
        low, high = (bound.clip(min=0) for bound in bounds[-1])
    return bounds


def solve_program(layers: Sequence[Layer], limits: Limits) -> np.ndarray:
    """Return the feasible combination (G,) with the highest output of a network with rectified hidden layers.

    The last layer has one output. Raise StepError if the solver finds none.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    arms, hidden, (last, _) = limits.weight_CG.shape[1], layers[:-1], layers[-1]
    sizes = [len(bias) for _, bias in hidden]
    count = arms + 2 * sum(sizes)
    rows: list[np.ndarray] = [np.pad(row, (0, count - arms)) for row in limits.weight_CG]
    most = list(limits.most_C)
    upper, is_whole = np.ones(count), np.zeros(count)
    is_whole[:arms] = 1
    first, inputs, at = 0, arms, arms
    for (weight, bias), (low, high), size in zip(hidden, find_bounds(hidden, arms), sizes, strict=True):
        for unit in range(size):
            y, z = at + unit, at + size + unit
            sum_V = np.zeros(count)
            sum_V[first : first + inputs] = weight[unit]
            unit_V, switch_V = np.eye(1, count, y)[0], np.eye(1, count, z)[0]
            least, greatest = min(low[unit], 0.0), max(high[unit], 0.0)
            rows += [sum_V - unit_V, unit_V - greatest * switch_V, unit_V - sum_V - least * switch_V]
            most += [-bias[unit], 0.0, bias[unit] - least]
            upper[y], is_whole[z] = greatest, 1
        first, inputs, at = at, size, at + 2 * size
    cost = np.zeros(count)
    cost[first : first + inputs] = -last[0]
    make_bounds: Any = Bounds  # scipy's stubs know bounds of a single variable
    make_rows: Any = LinearConstraint
    found = milp(
        cost,
        constraints=make_rows(np.array(rows), ub=np.array(most)),
        bounds=make_bounds(np.zeros(count), upper),
        integrality=is_whole,
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise StepError(f"the program of the best combination was not solved: {found.message}")
    return found.x[:arms].round().astype(np.int64)


class CombinationValues(nn.Module):
    """Values of an observation with a combination; it acts by the best feasible one."""

    def __init__(self, network: nn.Module, arms: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("weight_CG", torch.zeros(0, arms, dtype=torch.float64))
        self.register_buffer("most_C", torch.zeros(0, dtype=torch.float64))

    def limit(self, limits: Limits) -> None:
        """Take the limits of what is feasible."""
        self.weight_CG, self.most_C = torch.from_numpy(limits.weight_CG), torch.from_numpy(limits.most_C)

    def compute_value(self, observation_BO: Tensor, action_BG: Tensor) -> Tensor:
        """Return the values (B,) of combinations."""
        return self.network(torch.cat([observation_BO, action_BG.to(observation_BO.dtype)], -1))[:, 0]

    def read_layers(self, observation_O: Tensor) -> list[Layer]:
        """Return the layers as functions of the combination alone: the observation is part of the first biases."""
        linear = [module for module in self.network.modules() if isinstance(module, nn.Linear)]
        layers = [(one.weight.detach().double().numpy(), one.bias.detach().double().numpy()) for one in linear]
        weight, bias = layers[0]
        shown = observation_O.double().numpy()
        return [(weight[:, len(shown) :], bias + weight[:, : len(shown)] @ shown), *layers[1:]]

    def find_best(self, observation_BO: Tensor) -> Tensor:
        """Return the best feasible combinations (B, G)."""
        limits = Limits(self.get_buffer("weight_CG").numpy(), self.get_buffer("most_C").numpy())
        return torch.from_numpy(np.stack([solve_program(self.read_layers(one), limits) for one in observation_BO]))

    def forward(self, batch: Any) -> Any:
        """Write `action`."""
        return batch.set("action", self.find_best(batch["observation"]))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in ("weight_CG", "most_C"):
            if prefix + name in state_dict:  # their number is that of the policy that was saved
                setattr(self, name, torch.zeros_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class ArmValues(CombinationValues):
    """Values that add up one number for each arm that something is done to, and one of the observation."""

    def compute_value(self, observation_BO: Tensor, action_BG: Tensor) -> Tensor:
        """Return the values (B,) of combinations."""
        made = self.network(observation_BO)
        return (made[:, :-1] * action_BG).sum(-1) + made[:, -1]

    def read_layers(self, observation_O: Tensor) -> list[Layer]:
        """Return one layer, the sum over arms."""
        with torch.no_grad():
            made = self.network(observation_O[None]).double().numpy()
        return [(made[:, :-1], made[:, -1])]
