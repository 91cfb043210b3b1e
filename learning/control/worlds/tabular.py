"""Finite decision processes with a horizon: drawn by a number, played as worlds, solved exactly.

Shapes: H steps, S states, A actions, N worlds.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

from schemas.errors import StepError

Count = Annotated[int, Field(ge=1)]
Several = Annotated[int, Field(ge=2)]
Kind = Literal["random", "gambles"]
EDGE = 0.08
"""How much more a gamble pays on average than the sure way."""
Info = dict[str, Any]
"""What Gymnasium passes beside observations and rewards."""


@dataclass(frozen=True)
class Process:
    """Probabilities (S, A, S) of the next state, mean rewards (S, A), and the number of steps of an episode."""

    transition_SAS: np.ndarray
    reward_SA: np.ndarray
    horizon: int


@lru_cache(maxsize=16)
def draw_process(states: int, actions: int, horizon: int, number: int) -> Process:
    """Return the process of a number: next states from a Dirichlet distribution, rewards between 0 and 1."""
    rng = np.random.default_rng([states, actions, horizon, number])
    transition_SAS = rng.dirichlet(np.full(states, 0.5), size=(states, actions))
    return Process(transition_SAS, rng.random((states, actions)), horizon)


@lru_cache(maxsize=16)
def draw_gambles(states: int, horizon: int, number: int) -> Process:
    """Return a process in which every state has a sure way on and a gamble, which pays a little more on average.

    A state pays the same for both actions: the first 0, the last 1, the others between .3 and .6. Action 0 leads to one
    of these, action 1 to the last state or to the first; the last one's chance is the pay of the sure way plus `EDGE`.
    """
    rng = np.random.default_rng([states, horizon, number])
    pay_S, sure = np.array([0.0, *rng.uniform(0.3, 0.6, states - 2), 1.0]), int(rng.integers(1, states - 1))
    transition_SAS = np.zeros((states, 2, states))
    transition_SAS[:, 0, sure] = 1.0
    transition_SAS[:, 1, 0], transition_SAS[:, 1, -1] = 1 - pay_S[sure] - EDGE, pay_S[sure] + EDGE
    return Process(transition_SAS, np.repeat(pay_S[:, None], 2, 1), horizon)


def draw(kind: str, states: int, actions: int, horizon: int, number: int) -> Process:
    """Return a process of a kind. Raise StepError for gambles with other than two actions or less than three states."""
    if kind == "random":
        return draw_process(states, actions, horizon, number)
    if actions != 2 or states < 3:
        raise StepError(f"env finite: gambles have 2 actions and 3 states or more, not {actions} and {states}")
    return draw_gambles(states, horizon, number)


def solve(process: Process) -> np.ndarray:
    """Return the best values (H, S, A) by backward induction."""
    value_S, values = np.zeros(len(process.reward_SA)), []
    for _ in range(process.horizon):
        values.append(process.reward_SA + process.transition_SAS @ value_S)
        value_S = values[-1].max(1)
    return np.stack(values[::-1])


def solve_near(process: Process, reference_HSA: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Return values and policy (H, S, A) of the best return minus `strength` · KL(π‖reference) at every step.

    π ∝ reference · exp(Q / strength), and V = strength · log Σ_a reference · exp(Q / strength).
    """
    value_S, values, policies = np.zeros(len(process.reward_SA)), [], []
    for reference_SA in reference_HSA[::-1]:
        values.append(process.reward_SA + process.transition_SAS @ value_S)
        highest_S = values[-1].max(1)
        weight_SA = reference_SA * np.exp((values[-1] - highest_S[:, None]) / strength)
        value_S = highest_S + strength * np.log(weight_SA.sum(1))
        policies.append(weight_SA / weight_SA.sum(1, keepdims=True))
    return np.stack(values[::-1]), np.stack(policies[::-1])


def evaluate(process: Process, policy_HSA: np.ndarray) -> np.ndarray:
    """Return the mean return of a policy from every state (S,)."""
    value_S = np.zeros(len(process.reward_SA))
    for policy_SA in policy_HSA[::-1]:
        value_S = (policy_SA * (process.reward_SA + process.transition_SAS @ value_S)).sum(1)
    return value_S


class Finite(gymnasium.Env):
    """Episodes of `horizon` steps from a state drawn evenly; the observation is the number of step and state."""

    def __init__(self, process: Process) -> None:
        self.process = process
        states, actions = process.reward_SA.shape
        self.observation_space = gymnasium.spaces.Discrete(process.horizon * states)
        self.action_space = gymnasium.spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[int, Info]:
        """Begin in a state drawn evenly."""
        super().reset(seed=seed)
        self.steps, self.state = 0, int(self.np_random.integers(len(self.process.reward_SA)))
        return self.observe(), {}

    def observe(self) -> int:
        """Return the number of step and state."""
        return min(self.steps, self.process.horizon - 1) * len(self.process.reward_SA) + self.state

    def step(self, action: int) -> tuple[int, float, bool, bool, Info]:
        """Earn the mean reward, and move."""
        earned = float(self.process.reward_SA[self.state, action])
        probability_S = self.process.transition_SAS[self.state, action]
        self.state = int(self.np_random.choice(len(probability_S), p=probability_S))
        self.steps += 1
        return self.observe(), earned, self.steps == self.process.horizon, False, {}


def perturb(process: Process, shift: float) -> Process:
    """Return a process in which a share of every transition goes to the worst state instead."""
    worst = solve(process)[0].max(1).argmin()
    away_S = np.eye(len(process.reward_SA))[worst]
    return replace(process, transition_SAS=(1 - shift) * process.transition_SAS + shift * away_S)


def turn_luck(process: Process, shift: float) -> Process:
    """Return a process in which a share of every transition leaves its best outcome for its worst.

    Outcomes are those that are possible, by their values; what is certain stays so. No more is moved than the best has.
    """
    turned_SAS, value_S = process.transition_SAS.copy(), solve(process)[0].max(1)
    for row_S in turned_SAS.reshape(-1, len(value_S)):
        possible = np.flatnonzero(row_S)
        best, worst = possible[value_S[possible].argmax()], possible[value_S[possible].argmin()]
        moved = min(shift, row_S[best])
        row_S[best] -= moved
        row_S[worst] += moved
    return replace(process, transition_SAS=turned_SAS)


def finite(
    *,
    states: Several = 4,
    actions: Several = 2,
    horizon: Count = 4,
    number: int = 0,
    kind: Kind = "random",
    shift: Annotated[float, Field(ge=0, le=1)] = 0.0,
    shifted: Literal["all", "luck"] = "all",
) -> gymnasium.Env:
    """Return a small decision process with a horizon, drawn by `number`; `solve` has its best values.

    `kind: gambles` has a sure action and a gamble in every state. With `shift` a share of every transition goes to
    the worst state, with `shifted: luck` from its best outcome to its worst: for tests of what is robust.
    """
    process = draw(kind, states, actions, horizon, number)
    change = perturb if shifted == "all" else turn_luck
    return Finite(change(process, shift) if shift else process)


def optimal(
    observation_NO: np.ndarray,
    *,
    states: Several = 4,
    actions: Several = 2,
    horizon: Count = 4,
    number: int = 0,
    kind: Kind = "random",
) -> np.ndarray:
    """Act best in `finite` with the same options, by its exact values."""
    best_HS = solve(draw(kind, states, actions, horizon, number)).argmax(-1)
    return best_HS.reshape(-1)[observation_NO.argmax(1)]
