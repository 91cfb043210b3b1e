"""Switches: a world of factors that change independently, with rewards that add up; and what tables learn of it.

Shapes: F factors, S = 2^F states, A actions.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.buffers.buffer import Buffer
from learning.control.policies.policy import load_control_policy
from learning.control.stepping.transitions import read_transitions, write_transitions
from learning.control.tables.counts import count_steps, read_table
from learning.control.worlds.tabular import Info

Factors = Annotated[int, Field(ge=1, le=10)]


def read_factors(state_S: np.ndarray, factors: int) -> np.ndarray:
    """Return the values of all factors (S, F), the first the lowest bit."""
    return state_S[:, None] >> np.arange(factors) & 1


class Switches(gymnasium.Env):
    """Factors that are 0 or 1: an action turns one over, and every factor that is 1 then earns its number."""

    def __init__(self, factors: int, limit: int) -> None:
        self.factors, self.limit = factors, limit
        self.observation_space = gymnasium.spaces.Discrete(2**factors)
        self.action_space = gymnasium.spaces.Discrete(factors)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[int, Info]:
        """Begin in a state drawn evenly."""
        super().reset(seed=seed)
        self.steps, self.state = 0, int(self.np_random.integers(2**self.factors))
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, Info]:
        """Turn a factor over."""
        self.state, self.steps = self.state ^ 1 << int(action), self.steps + 1
        earned = read_factors(np.array([self.state]), self.factors)[0] @ np.arange(1, self.factors + 1) / self.factors
        return self.state, float(earned), False, self.steps >= self.limit, {}


def switches(*, factors: Factors = 3, limit: Annotated[int, Field(ge=1)] = 12) -> gymnasium.Env:
    """Return a world of switches, each turned over by an action of its own."""
    return Switches(factors, limit)


def leave_out(context: Any, *, omitted: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Write the input `transitions` without the steps from some states by some actions; return what is left."""
    given = read_transitions(context.input("transitions"))
    state_T = given.observation.argmax(1)
    kept_T = ~np.any([(state_T == state) & (given.action == action) for state, action in omitted], axis=0)
    columns = {name: value[kept_T] for name, value in vars(given).items() if name != "spaces"}
    write_transitions(context.output("transitions"), replace(given, **columns))
    return {"steps": float(kept_T.sum()), "omitted": float((~kept_T).sum())}


def measure_errors(context: Any, *, omitted: Sequence[tuple[int, int]], gamma: float = 0.9) -> dict[str, float]:
    """Return the largest error of the values of each policy, where steps were left out and elsewhere.

    The right values are those of a model that counts all steps of the input `transitions`, exact in a deterministic
    world of which they show everything.
    """
    given = read_transitions(context.input("transitions"))
    kept = Buffer(len(given), given.spaces)
    kept.add(given)
    counts = count_steps(kept.save(), given.spaces)
    visits_SA, best_SA = np.maximum(counts.visits_SA, 1), np.zeros_like(counts.visits_SA)
    for _ in range(int(np.ceil(40 / max(1e-3, 1 - gamma)))):
        best_SA = counts.reward_SA / visits_SA + gamma * counts.next_SAS / visits_SA[..., None] @ best_SA.max(1)
    left_out_SA, metrics = np.zeros(best_SA.shape, bool), {}
    left_out_SA[tuple(np.array(omitted).T)] = True
    seen_SA = counts.visits_SA > 0
    for name in sorted(name.removeprefix("inputs.") for name in context.inputs if name.startswith("inputs.")):
        if name != "transitions":
            error_SA = np.abs(read_table(load_control_policy(context.input(name)).actor) - best_SA)
            metrics |= {f"omitted.{name}": float(error_SA[left_out_SA].max())}
            metrics |= {f"elsewhere.{name}": float(error_SA[seen_SA & ~left_out_SA].max())}
    (context.output("result") / "errors.json").write_text(json.dumps(metrics, indent=1) + "\n")
    return metrics
