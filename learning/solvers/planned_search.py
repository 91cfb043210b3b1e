"""A solver that proves by parts: a planner names subgoals, several provers search for each, and share their proofs.

The environment must be able to divide its problems (`Divisible`) and to save its states. The answer is the plan of all
turns as a JSON list, which the reward `plans.replayed` plays and scores.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.environments.protocol import Divisible
from learning.lookup import Inner, TeacherFunction
from learning.tree_search.shared_proofs import Cache, Team, make_key, search_together
from learning.tree_search.states import Candidate, States
from schemas.errors import StepError
from schemas.use import EnvUse

Ask = Callable[[list[Row]], list[str]]
AtLeast1 = Annotated[int, Field(ge=1)]


@dataclass
class Attempt:
    """A problem in parts, and how often it was planned."""

    parts: list[Row]
    plans: int = 0
    failed: bool = False

    def find_open(self, cache: Cache) -> int | None:
        """Return the place of the first unsolved part; None if there is none, or no plan is left."""
        places = (place for place, part in enumerate(self.parts) if make_key(part) not in cache)
        return None if self.failed else next(places, None)


def planned_search(
    rows: list[Row],
    ask: Ask,
    *,
    env: EnvUse,
    planner: TeacherFunction,
    expansions: AtLeast1,
    provers: AtLeast1 = 2,
    plans: AtLeast1 = 2,
    candidates: AtLeast1 = 4,
    solved: float = 1.0,
    seed: int = 0,
    max_characters: AtLeast1 = 100_000,
) -> list[str]:
    """Subgoals of a planner, solved by a team of provers with a shared cache (BFS-Prover-V2, Xin et al. 2025).

    `planner` writes a plan for a problem, which `env` divides into parts. All `provers` search for the first part that
    is open, each best first with `expansions` states, in which the model proposes `candidates` turns. As soon as one of
    them earns `solved` the turns are in the cache; the others stop, and that part is not searched for again in
    whichever problem it stands. A part that no prover solves is planned itself, and its parts stand in its place, until
    a problem had `plans` plans.
    """
    guide: Inner = planner
    states = _make_states(env, ask, candidates, max_characters)
    world = states.environment
    if not isinstance(world, Divisible):
        raise StepError(f"solver planned_search: env {env.use} has no `divide`, so that its problems have no subgoals")
    cache: Cache = {}
    attempts = [Attempt([row]) for row in rows]
    for place, attempt in enumerate(attempts):
        _plan(attempt, 0, guide, world, np.random.default_rng([seed, place]), plans)
    while teams := _gather_teams(attempts, cache, states, provers):
        search_together(list(teams.values()), states, cache, expansions=expansions, solved=solved)
        for place, attempt in enumerate(attempts):
            stuck = attempt.find_open(cache)
            if stuck is not None and make_key(attempt.parts[stuck]) in teams:
                _plan(attempt, stuck, guide, world, np.random.default_rng([seed, place, attempt.plans]), plans)
    return [json.dumps(_list_turns(attempt, cache)) for attempt in attempts]


def _list_turns(attempt: Attempt, cache: Cache) -> list[str]:
    """Return the turns of the parts that are solved, up to the first that is not."""
    turns: list[str] = []
    for part in attempt.parts:
        if make_key(part) not in cache:
            break
        turns += cache[make_key(part)]
    return turns


def _plan(attempt: Attempt, place: int, planner: Inner, world: Divisible, rng: np.random.Generator, plans: int) -> None:
    """Put the parts of a plan in the place of a problem; without a plan, a whole problem stays, and others fail."""
    if attempt.plans == plans:
        attempt.failed = True
        return
    attempt.plans += 1
    parts = world.divide(attempt.parts[place], planner.bound(attempt.parts[place], rng))
    if parts:
        attempt.parts[place : place + 1] = parts
    elif attempt.plans > 1:
        attempt.failed = True


def _gather_teams(attempts: Sequence[Attempt], cache: Cache, states: States, provers: int) -> dict[str, Team]:
    """Return a team for the first open part of each problem; equal parts have one team."""
    teams: dict[str, Team] = {}
    for attempt in attempts:
        place = attempt.find_open(cache)
        if place is not None and (key := make_key(attempt.parts[place])) not in teams:
            teams[key] = Team(attempt.parts[place], states, provers)
    return teams


def _make_states(env: EnvUse, ask: Ask, candidates: int, max_characters: int) -> States:
    def propose(rows: list[Row]) -> list[list[Candidate]]:
        repeated = [row | {"id": f"{row['id']}~{number}"} for row in rows for number in range(candidates)]
        texts = iter(ask(repeated))
        return [[Candidate(next(texts)) for _ in range(candidates)] for _ in rows]

    return States(env, propose, max_characters=max_characters)
