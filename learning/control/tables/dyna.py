"""Dyna for finite worlds: tables of values, updated by kept steps or by those that a learned model makes up.

Shapes: S states, A actions, B steps, F factors.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from learning.control.losses.standard import Algorithm, Share
from learning.control.networks.build import Networks
from learning.control.stepping.spaces import Spaces
from learning.control.tables.counts import (
    Counts,
    Kept,
    Planned,
    count_steps,
    find_states,
    read_table,
    require_tables,
    write_table,
)
from learning.control.tables.factored import read_factors
from learning.lookup import Inner
from schemas.control import ExperienceUse
from schemas.errors import StepError

if TYPE_CHECKING:
    ExperienceFunction = Inner
else:
    ExperienceFunction = ExperienceUse
"""Option of a slot's function: what gives the steps to learn from, which it gets bound."""


@dataclass(frozen=True)
class Drawn:
    """Steps by the numbers of their states."""

    state_B: np.ndarray
    action_B: np.ndarray
    reward_B: np.ndarray
    next_B: np.ndarray
    goes_on_B: np.ndarray


def replayed(kept: Kept, rng: np.random.Generator, count: int) -> Drawn:
    """Return kept steps, drawn evenly: experience replay."""
    place_B = rng.integers(len(kept["reward"]), size=count)
    columns = {name: column[place_B] for name, column in kept.items()}
    return Drawn(
        find_states(columns["observation"]),
        columns["action"].numpy(),
        columns["reward"][:, 0].double().numpy(),
        find_states(columns["next_observation"]),
        ~columns["terminated"][:, 0].numpy(),
    )


def counted(kept: Kept, rng: np.random.Generator, count: int, spaces: Spaces) -> Drawn:
    """Return steps of a model that counts whole states: from states and actions that were kept, drawn evenly."""
    counts = count_steps(kept, spaces)
    state_B, action_B = draw_pairs(counts.visits_SA > 0, rng, count)
    visits_B = counts.visits_SA[state_B, action_B]
    chance_BS = counts.next_SAS[state_B, action_B] / visits_B[:, None]
    next_B, goes_on_B = draw_states(chance_BS, rng)
    return Drawn(state_B, action_B, counts.reward_SA[state_B, action_B] / visits_B, next_B, goes_on_B)


def factored(
    kept: Kept, rng: np.random.Generator, count: int, spaces: Spaces, *, factors: Annotated[int, Field(ge=1, le=10)]
) -> Drawn:
    """Return steps of a model that counts each factor by itself, with rewards that are sums over factors.

    Every state and action is drawn whose factors were seen with that action, also where the pair itself was not kept.
    """
    if 2**factors != spaces.observations:
        raise StepError(
            f"experience factored: {factors} factors have {2**factors} states, and not {spaces.observations}"
        )
    if kept["terminated"].any():
        raise StepError("experience factored: its model has no ends of episodes; use counted")
    counts = count_steps(kept, spaces)
    bit_SF = read_factors(np.arange(spaces.observations), factors)
    on_AFV, seen_AFV = count_factors(counts, bit_SF)
    known_SA = np.stack([(seen_FV[np.arange(factors), bit_SF] > 0).all(1) for seen_FV in seen_AFV], 1)
    state_B, action_B = draw_pairs(known_SA, rng, count)
    each = np.arange(factors)
    asked = action_B[:, None], each, bit_SF[state_B]
    turned_on_BF = rng.random((count, factors)) < on_AFV[asked] / seen_AFV[asked]
    reward_SA = fit_rewards(counts, bit_SF)
    return Drawn(state_B, action_B, reward_SA[state_B, action_B], turned_on_BF @ (1 << each), np.ones(count, bool))


def count_factors(counts: Counts, bit_SF: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each factor with a value was 1 after an action, and how often it was seen (A, F, 2)."""
    is_SFV = bit_SF[..., None] == np.arange(2)
    seen_AFV = np.einsum("sa,sfv->afv", counts.next_SAS.sum(-1), is_SFV)
    return np.einsum("sat,sfv,tf->afv", counts.next_SAS, is_SFV, bit_SF), seen_AFV


def fit_rewards(counts: Counts, bit_SF: np.ndarray) -> np.ndarray:
    """Return rewards (S, A) that are, for each action, a constant and a number for each factor: least squares."""
    shown_SG = np.concatenate([np.ones((len(bit_SF), 1)), bit_SF], 1)
    columns = []
    for visits_S, reward_S in zip(counts.visits_SA.T, counts.reward_SA.T, strict=True):
        root_S = np.sqrt(visits_S)
        scaled_S = np.divide(reward_S, root_S, out=np.zeros_like(reward_S), where=visits_S > 0)
        columns.append(shown_SG @ np.linalg.lstsq(shown_SG * root_S[:, None], scaled_S, rcond=None)[0])
    return np.stack(columns, 1)


def draw_pairs(known_SA: np.ndarray, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return states and actions of those that are known, drawn evenly."""
    state_K, action_K = known_SA.nonzero()
    place_B = rng.integers(len(state_K), size=count)
    return state_K[place_B], action_K[place_B]


def draw_states(chance_BS: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return next states by their chances, and whether the episode goes on: what is missing to 1 is its end."""
    passed_BS = rng.random((len(chance_BS), 1)) < chance_BS.cumsum(1)
    return passed_BS.argmax(1), np.asarray(passed_BS.any(1))


def dyna(
    networks: Networks,
    *,
    gamma: Share = 0.95,
    step_size: Annotated[float, Field(gt=0, le=1)] = 0.5,
    updates: Annotated[int, Field(ge=1)] = 10,
    experience: ExperienceFunction,
) -> Algorithm:
    """Tabular Q-learning with `updates` of drawn steps after each step of the world (Dyna-Q, Sutton 1990).

    Q(s, a) moves by `step_size` towards r + γ max Q(s', ·); values begin at 0. `experience` draws the steps: `counted`
    from a model, which is Dyna, `replayed` from what is kept.
    """
    require_tables(networks, "dyna")
    actor = networks.make_choice_values()
    write_table(actor, np.zeros((networks.spaces.observations, networks.spaces.actions)))

    def fit(kept: Kept, rng: np.random.Generator) -> dict[str, float]:
        drawn, value_SA = experience(kept=kept, rng=rng, count=updates, spaces=networks.spaces), read_table(actor)
        errors = []
        for state, action, reward, after, goes_on in zip(*vars(drawn).values(), strict=True):
            target = reward + gamma * goes_on * value_SA[after].max()
            errors.append(target - value_SA[state, action])
            value_SA[state, action] += step_size * errors[-1]
        write_table(actor, value_SA)
        return {"td_error": float(np.abs(errors).mean())}

    return Algorithm(
        Planned(actor), actor, "make_choice_values", (), fit=fit, fits_each="step", updates_per_fit=updates
    )
