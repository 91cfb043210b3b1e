"""Samples of a model by search in the states of an environment, which must be able to save and restore them.

Slot search of synthesis: `ask(rows)` gives the stage's number of turns for each row, `score(rows, texts)` what its
rewards say of turns. What is returned are single turns, each with what the model saw as its prompt: for imitation
(`returns: path`), or to compare turns in one state with each other (`returns: tree`), which share an id.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from learning.data.rows import Row
from learning.evaluation.sampled_answers import AnswerSample
from learning.tree_search.searches import Guide, rate_below, search_beam, search_best_first, search_mcts
from learning.tree_search.states import Candidate, Node, States, find_best
from schemas.use import EnvUse

Ask = Callable[[Sequence[Row]], list[list[AnswerSample]]]
Score = Callable[[list[Row], list[str]], list[float | None]]
AtLeast1 = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Discount = Annotated[float, Field(gt=0, le=1)]
Returns = Literal["path", "tree"]


def state_mcts(
    problems: list[Row],
    ask: Ask,
    score: Score,
    *,
    env: EnvUse,
    simulations: AtLeast1,
    exploration: NotNegative = 1.0,
    playout_turns: Annotated[int, Field(ge=0)] = 0,
    guidance: float = 0.0,
    gamma: Discount = 1.0,
    returns: Returns = "path",
    max_characters: AtLeast1 = 100_000,
) -> list[Row]:
    """Monte Carlo tree search over the states of `env` (UCT): each simulation tries the proposed turns in one state.

    The value of a state is what was earned on the way (each later turn discounted by `gamma`), after `playout_turns`
    further turns of the model, plus `guidance` times what the stage's rewards say of its last turn. `path` returns the
    turns of the best episode, scored by what it earned; `tree` all turns, scored by the mean value found below.
    """
    states = _make_states(env, ask, gamma, max_characters)
    roots, guide = [states.plant(row) for row in problems], Guide(score, guidance)
    how = {"simulations": simulations, "exploration": exploration, "playout_turns": playout_turns}
    search_mcts(roots, states, guide, **how)
    return [row for root in roots for row in _list_rows(root, returns, lambda node: node.value)]


def state_beam(
    problems: list[Row],
    ask: Ask,
    score: Score,
    *,
    env: EnvUse,
    width: AtLeast1,
    guidance: float = 0.0,
    gamma: Discount = 1.0,
    returns: Returns = "path",
    max_characters: AtLeast1 = 100_000,
) -> list[Row]:
    """Beam search over the states of `env`: each turn continues the `width` most promising states.

    The promise is what was earned on the way plus `guidance` times what the stage's rewards say of the last turn;
    among equals the turn that the model proposed most often comes first. Options and results are as in `state_mcts`;
    with `tree` the score of a turn is the most that was earned below.
    """
    states = _make_states(env, ask, gamma, max_characters)
    roots = [states.plant(row) for row in problems]
    search_beam(roots, states, Guide(score, guidance), width=width)
    return _list_best(roots, returns)


def state_best_first(
    problems: list[Row],
    ask: Ask,
    score: Score,
    *,
    env: EnvUse,
    expansions: AtLeast1,
    guidance: float = 0.0,
    cumulative: bool = False,
    gamma: Discount = 1.0,
    returns: Returns = "path",
    max_characters: AtLeast1 = 100_000,
) -> list[Row]:
    """Best-first search over the states of `env`: it continues the most promising state, `expansions` times.

    Promise, options and results are as in `state_beam`. `cumulative`: the promise has the scores of all turns on the
    way instead of the last one. With the reward `likelihood.completion` that is the log-probability of the way, as in
    BFS-Prover (Xin et al. 2025).
    """
    states = _make_states(env, ask, gamma, max_characters)
    roots = [states.plant(row) for row in problems]
    search_best_first(roots, states, Guide(score, guidance, cumulative=cumulative), expansions=expansions)
    return _list_best(roots, returns)


def _make_states(env: EnvUse, ask: Ask, gamma: float, max_characters: int) -> States:
    def propose(rows: list[Row]) -> list[list[Candidate]]:
        return [[Candidate(sample.text, sample.finish == "stop") for sample in group] for group in ask(rows)]

    return States(env, propose, gamma=gamma, max_characters=max_characters)


def _list_best(roots: Sequence[Node], returns: Returns) -> list[Row]:
    rows = list[Row]()
    for root in roots:
        below = rate_below(root)
        rows += _list_rows(root, returns, below.__getitem__)
    return rows


def _list_rows(root: Node, returns: Returns, rate: Callable[[Node], float]) -> list[Row]:
    """Return the turns of the best episode, or of the whole tree, as rows with `text`, `finished` and `score`."""
    if returns == "path":
        path = find_best(root)
        return [_make_row(node, path[-1].earned) for node in path]
    return [_make_row(node, rate(node)) for node in root.list_all() if node.parent is not None]


def _make_row(node: Node, score: float) -> Row:
    assert node.parent is not None
    return node.parent.row | {"text": node.action, "finished": True, "score": score}
