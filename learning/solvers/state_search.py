"""Solvers that plan: a search in the states of an environment, which must be able to save and restore them.

The answer is the plan as a JSON list of turns, which the reward `plans.replayed` plays and scores.
"""

import json
from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.tree_search.searches import Guide, search_beam, search_best_first, search_mcts
from learning.tree_search.states import Candidate, States, find_best
from schemas.use import EnvUse

Ask = Callable[[list[Row]], list[str]]
AtLeast1 = Annotated[int, Field(ge=1)]
Discount = Annotated[float, Field(gt=0, le=1)]


def state_mcts(
    rows: list[Row],
    ask: Ask,
    *,
    env: EnvUse,
    simulations: AtLeast1,
    candidates: AtLeast1 = 4,
    exploration: Annotated[float, Field(ge=0)] = 1.0,
    playout_turns: Annotated[int, Field(ge=0)] = 0,
    gamma: Discount = 1.0,
    max_characters: AtLeast1 = 100_000,
) -> list[str]:
    """Monte Carlo tree search over the states of `env`, in each of which the model proposes `candidates` turns.

    The value of a state is what was earned on the way, each later turn discounted by `gamma`, after `playout_turns`
    further turns of the model. The answer is the best episode that was found.
    """
    states = _make_states(env, ask, candidates, gamma, max_characters)
    roots = [states.plant(row) for row in rows]
    how = {"simulations": simulations, "exploration": exploration, "playout_turns": playout_turns}
    search_mcts(roots, states, Guide(), **how)
    return [json.dumps([node.action for node in find_best(root)]) for root in roots]


def state_beam(
    rows: list[Row],
    ask: Ask,
    *,
    env: EnvUse,
    width: AtLeast1,
    candidates: AtLeast1 = 4,
    gamma: Discount = 1.0,
    max_characters: AtLeast1 = 100_000,
) -> list[str]:
    """Beam search over the states of `env`: each turn continues the `width` states that earned most.

    Options and answers are as in `state_mcts`. With `width: 1` and `candidates: 1` it is an episode without a search.
    """
    states = _make_states(env, ask, candidates, gamma, max_characters)
    roots = [states.plant(row) for row in rows]
    search_beam(roots, states, Guide(), width=width)
    return [json.dumps([node.action for node in find_best(root)]) for root in roots]


def state_best_first(
    rows: list[Row],
    ask: Ask,
    *,
    env: EnvUse,
    expansions: AtLeast1,
    candidates: AtLeast1 = 4,
    gamma: Discount = 1.0,
    max_characters: AtLeast1 = 100_000,
) -> list[str]:
    """Best-first search over the states of `env`: it continues the state that earned most, `expansions` times.

    Options and answers are as in `state_mcts`.
    """
    states = _make_states(env, ask, candidates, gamma, max_characters)
    roots = [states.plant(row) for row in rows]
    search_best_first(roots, states, Guide(), expansions=expansions)
    return [json.dumps([node.action for node in find_best(root)]) for root in roots]


def _make_states(env: EnvUse, ask: Ask, candidates: int, gamma: float, max_characters: int) -> States:
    def propose(rows: list[Row]) -> list[list[Candidate]]:
        repeated = [row | {"id": f"{row['id']}~{number}"} for row in rows for number in range(candidates)]
        texts = iter(ask(repeated))
        return [[Candidate(next(texts)) for _ in range(candidates)] for _ in rows]

    return States(env, propose, gamma=gamma, max_characters=max_characters)
