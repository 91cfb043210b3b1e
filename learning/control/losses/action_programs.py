"""Q-learning with combinations of interventions, of which a program finds the best (SEQUOIA, Xu et al. 2025).

An action of a team says of each agent, an arm, whether something is done to it (1) or not (0). Shapes: B steps,
N worlds, G arms, C limits.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from learning.control.losses.standard import Algorithm, Share
from learning.control.losses.team_losses import require_team
from learning.control.networks.build import Networks
from learning.control.networks.combination_values import CombinationValues, Limits
from learning.control.stepping.spaces import Spaces
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat

Rows = Sequence[Sequence[float]]
Numbers = Sequence[float]


def make_limits(spaces: Spaces, weights: Rows, most: Numbers) -> Limits:
    """Return limits Σ weights · action ≤ most. Raise StepError unless they fit the arms and allow to do nothing."""
    weight_CG, most_C = np.array(weights, float), np.array(most, float)
    if weight_CG.shape != (len(most_C), spaces.agents) or spaces.actions != 2:
        raise StepError(
            f"limits: {len(most)} numbers of `most` need as many rows of `weights`, each with a number for each of "
            f"{spaces.agents} arms that have 2 choices; {spaces.describe()}"
        )
    if not np.isfinite(weight_CG).all() or not (most_C >= 0).all():
        raise StepError("limits: `weights` must be finite, and `most` at least 0: doing nothing must be allowed")
    return Limits(weight_CG, most_C)


def draw_feasible(limits: Limits, rng: np.random.Generator) -> np.ndarray:
    """Return a feasible action (G,): arms are added in random order while limits allow it, up to a random number."""
    action_G = np.zeros(limits.weight_CG.shape[1], np.int64)
    wanted = rng.integers(len(action_G) + 1)
    for arm in rng.permutation(len(action_G))[:wanted]:
        action_G[arm] = 1
        if not limits.allow(action_G):
            action_G[arm] = 0
    return action_G


def feasible(
    observation_NO: np.ndarray, spaces: Spaces, rng: np.random.Generator, *, weights: Rows, most: Numbers
) -> np.ndarray:
    """Choose random feasible combinations (N, G)."""
    limits = make_limits(spaces, weights, most)
    return np.stack([draw_feasible(limits, rng) for _ in observation_NO])


def feasible_greedy(
    action_N: np.ndarray,
    spaces: Spaces,
    rng: np.random.Generator,
    *,
    weights: Rows,
    most: Numbers,
    epsilon: ScheduledFloat = 0.1,
) -> np.ndarray:
    """Replace whole combinations by random feasible ones with probability `epsilon`."""
    limits = make_limits(spaces, weights, most)
    return np.stack([draw_feasible(limits, rng) if rng.random() < epsilon else action_G for action_G in action_N])


class ProgramLoss(nn.Module):
    """Squared errors from r + γ max Q'(s', a), where a program finds the maximum over what is feasible."""

    def __init__(self, actor: CombinationValues, target: CombinationValues, gamma: float, period: int) -> None:
        super().__init__()
        self.value_network, self.target_network = actor, target.requires_grad_(False)
        self.gamma, self.period = gamma, period
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.known: dict[bytes, float] = {}
        """Best values of the target network by observation, until it changes."""

    def find_best_values(self, observation_BO: Tensor) -> Tensor:
        """Return the target network's highest values of feasible combinations (B,); each state is solved once."""
        values = []
        for shown_O in observation_BO:
            key = shown_O.numpy().tobytes()
            if key not in self.known:
                action_1G = self.target_network.find_best(shown_O[None])
                self.known[key] = float(self.target_network.compute_value(shown_O[None], action_1G))
            values.append(self.known[key])
        return torch.tensor(values)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Return the term `loss`."""
        following = batch["next"]
        with torch.no_grad():
            later_B = self.find_best_values(following["observation"])
            target_B = following["reward"][:, 0] + self.gamma * ~following["terminated"][:, 0] * later_B
        value_B = self.value_network.compute_value(batch["observation"], batch["action"])
        return {"loss": (value_B - target_B).square().mean()}

    def update_target(self) -> None:
        """Make the target network a copy of the trained one after every `period` updates."""
        self.get_buffer("updates").add_(1)
        if int(self.get_buffer("updates")) % self.period == 0:
            self.target_network.load_state_dict(self.value_network.state_dict())
            self.known.clear()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.known.clear()


def sequoia(
    networks: Networks,
    *,
    weights: Rows,
    most: Numbers,
    values: Literal["joint", "per_arm"] = "joint",
    gamma: Share = 0.95,
    target_period: Annotated[int, Field(ge=1)] = 50,
) -> Algorithm:
    """Deep Q-learning whose action is the best feasible combination by a mixed-integer program (Xu et al. 2025).

    The network reads the observation and the combination; the program contains its rectified units and the limits
    Σ `weights` · action ≤ `most`. `values: per_arm` adds up a value of each arm in place of it, as indices do.
    """
    require_team(networks, "sequoia")
    if networks.settings.activation != "relu" or not networks.settings.hidden_sizes:
        raise StepError("loss sequoia: the program needs rectified hidden units: `activation: relu` and a layer")
    limits = make_limits(networks.spaces, weights, most)
    form = "make_combination_values" if values == "joint" else "make_arm_values"
    actor, target = getattr(networks, form)(), getattr(networks, form)()
    for network in (actor, target):
        network.limit(limits)
    target.load_state_dict(actor.state_dict())
    loss = ProgramLoss(actor, target, gamma, target_period)
    return Algorithm(loss, actor, form, ("loss",), loss.update_target, is_for_teams=True)
