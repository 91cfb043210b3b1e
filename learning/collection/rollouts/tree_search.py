"""Rollout as a Monte Carlo tree search: every completion of a group continues an earlier one where that has paid.

A state is what an episode has said and seen before one of its turns. The tree of a group consists of the episodes that
exist; each further completion is one simulation, which branches off in the state to which a walk from the start leads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated

from pydantic import Field

from learning.collection.rollouts.branching import trace
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.pending_samples import Pending, advance, branch, ended_groups, start
from learning.sampling.sampler import Sampler
from schemas.errors import StepError


def tree_search(
    requests: list[SampleRequest],
    sampler: Sampler,
    *,
    initial: Annotated[int, Field(ge=1)] = 1,
    exploration: Annotated[float, Field(ge=0)] = 1.0,
    widening: Annotated[float, Field(gt=0)] = 2.0,
) -> list[Sample]:
    """Sample `initial` whole episodes of a group, then each further one from a state that a tree search chooses (UCT).

    A walk begins at the start. In a state that n episodes passed through, and in which k turns were sampled, it stops
    if k ≤ `widening`·√n (progressive widening, Coulom 2007); else it goes on to the turn with the highest mean return
    of the environment's rewards + `exploration`·√(ln n / N), N the episodes with that turn. A turn is sampled where it
    stops, and the episode from there to its end, on-policy. Raise StepError for a group smaller than `initial`.
    """
    pool = start(requests, sampler)
    waiting: dict[tuple[str, int], list[Pending]] = {}
    for one in pool:
        waiting.setdefault((one.group, one.seed), []).append(one)
    episodes: dict[tuple[str, int], list[Pending]] = {}
    for key, members in waiting.items():
        if len(members) < initial:
            raise StepError(
                f"rollout tree_search: initial {initial} is more than the {len(members)} completions of a group; "
                "lower it or raise num_generations"
            )
        episodes[key], waiting[key] = members[:initial], members[initial:]
    fresh = [one for members in episodes.values() for one in members]
    while fresh:
        advance(fresh, sampler)
        fresh = []
        for key, members in waiting.items():
            if members:
                source, turn = choose_state(episodes[key], exploration, widening)
                one = branch(members.pop(0), source, turn) if turn else members.pop(0)
                fresh.append(one)
                episodes[key].append(one)
    return [trace(sample, one) for sample, one in zip(ended_groups(pool, sampler)[0], pool, strict=True)]


@dataclass
class _State:
    """The episodes that passed through a state, and the states after it by the tokens up to there."""

    turn: int
    """Number of turns before it."""
    episodes: list[Pending] = field(default_factory=list)
    later: "dict[tuple[int, ...], _State]" = field(default_factory=dict)
    sampled: int = 0
    """Number of turns that were sampled in it; those that a branch took over do not count."""

    def add(self, one: Pending, tokens: int) -> None:
        """Add an episode that has so many tokens before this state."""
        self.episodes.append(one)
        self.sampled += len(one.origins) <= tokens


def choose_state(episodes: Sequence[Pending], exploration: float, widening: float) -> tuple[Pending, int]:
    """Return an episode that passed through the chosen state, the first one, and the number of turns before it."""
    now = _grow(episodes)
    while now.later and now.sampled > widening * math.sqrt(len(now.episodes)):
        log_visits = math.log(len(now.episodes))
        now = max(
            now.later.values(),
            key=lambda state: (
                fmean(map(compute_return, state.episodes)) + exploration * math.sqrt(log_visits / len(state.episodes))
            ),
        )
    return now.episodes[0], now.turn


def compute_return(one: Pending) -> float:
    """Return the sum of what the environment gave for the turns of an episode."""
    return float(sum(turn.reward for turn in one.turns))


def _grow(episodes: Sequence[Pending]) -> _State:
    """Return the first state of the tree of some episodes."""
    root = _State(0)
    for one in episodes:
        now, end = root, 0
        now.add(one, 0)
        for number, turn in enumerate(one.turns, 1):
            end += turn.sampled + turn.observed
            if end >= len(one.ids):
                break
            now = now.later.setdefault(tuple(one.ids[:end]), _State(number))
            now.add(one, end)
    return root
