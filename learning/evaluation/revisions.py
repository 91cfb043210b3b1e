"""Revision trajectories: episodes that go wrong, notice it, and go on as a better one does (Agent-R, Yuan et al. 2025).

Slot search of synthesis, as in `learning.evaluation.state_searches`: what is returned are the turns to be learned, each
with the conversation before it as its prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import Field

from learning.data.questions import fill_template
from learning.data.rows import Row
from learning.evaluation.sampled_answers import AnswerSample
from learning.tree_search.searches import Guide, search_mcts
from learning.tree_search.states import Candidate, Node, Propose, States
from schemas.errors import StepError
from schemas.use import EnvUse

Ask = Callable[[Sequence[Row]], list[list[AnswerSample]]]
Score = Callable[[list[Row], list[str]], list[float | None]]
AtLeast1 = Annotated[int, Field(ge=1)]
Item = TypeVar("Item")
Texts = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
JUDGE = "{task}\n{history}\n{action}\n{observation}\nwas the last action good or bad?"
THOUGHTS = ("wait, that was a mistake", "wait, this does not help", "wait, I try another way")


@dataclass(frozen=True)
class Turn:
    """A turn to be learned: the conversation before it, and what is said."""

    prompt: list[Row]
    text: str


@dataclass(frozen=True)
class Pair:
    """The last states of two episodes of one problem, the better and the worse one."""

    good: Node
    bad: Node


class EndedStates(States):
    """Trees of states that remember where episodes have ended, in the tree or in a playout."""

    def __init__(self, env: EnvUse, propose: Propose, *, max_characters: int) -> None:
        super().__init__(env, propose, max_characters=max_characters)
        self.ends: list[Node] = []

    def _step(self, node: Node, text: str, place: int, times: int) -> Node:
        after = super()._step(node, text, place, times)
        if after.closed:
            self.ends.append(after)
        return after

    def list_ends(self, root: Node) -> list[Node]:
        """Return the last states of all episodes of a problem; each sequence of turns once."""
        own = [node for node in self.ends if list(node.list_past())[-1] is root]
        return list({tuple(state.action for state in walk(node)): node for node in own}.values())


def state_revisions(
    problems: list[Row],
    ask: Ask,
    score: Score,
    *,
    env: EnvUse,
    simulations: AtLeast1,
    exploration: Annotated[float, Field(ge=0)] = 1.0,
    playout_turns: AtLeast1 = 100,
    good: float = 1.0,
    margin: Annotated[float, Field(gt=0)] = 0.5,
    pairs: AtLeast1 = 4,
    cut: Literal["marked", "end"] = "marked",
    judge: str = JUDGE,
    passes: Texts = ["good", "uncertain"],  # noqa: B006 — never written to
    thoughts: Texts = list(THOUGHTS),  # noqa: B006
    reply: str = "ok",
    returns: Literal["revisions", "good", "both"] = "both",
    seed: int = 0,
    max_characters: AtLeast1 = 100_000,
) -> list[Row]:
    """Pair good with bad episodes of a Monte Carlo tree search, and splice them where the model itself sees the error.

    A good episode earned at least `good`, a bad one at least `margin` less. The model is asked with `judge` ({task},
    {history}, {action}, {observation}) about each turn of the bad one, from the first: the episode is cut after the
    first turn whose judgement has none of the words in `passes`, or at its end, with `cut: end` always there. After it
    comes one of the `thoughts`, answered by `reply`, and then the turns of the good episode after the last state that
    both share. Learned are the thought and the turns after it, no turn of the bad episode. `good` returns the turns of
    good episodes as they are. At most `pairs` of each kind of a problem are drawn at random. Raise StepError for an
    environment without saved states, or one that the recipe gives a context.
    """

    def propose(rows: list[Row]) -> list[list[Candidate]]:
        return [[Candidate(sample.text, sample.finish == "stop") for sample in group] for group in ask(rows)]

    states = EndedStates(env, propose, max_characters=max_characters)
    roots = [states.plant(row) for row in problems]
    how = {"simulations": simulations, "exploration": exploration, "playout_turns": playout_turns}
    search_mcts(roots, states, Guide(), **how)
    rng, rows, chosen = np.random.default_rng(seed), list[Row](), list[Pair]()
    for root in roots:
        ends = states.list_ends(root)
        best = [end for end in ends if end.earned >= good]
        if returns != "revisions":
            rows += [row for place, end in enumerate(draw(best, pairs, rng)) for row in _list_turns(root, place, end)]
        both = [Pair(high, low) for high in best for low in ends if high.earned - low.earned >= margin]
        chosen += draw(both, pairs, rng)
    if returns == "good":
        return rows
    cuts = mark_errors(chosen, ask, judge, passes) if cut == "marked" else [pair.bad.depth for pair in chosen]
    for place, (pair, length) in enumerate(zip(chosen, cuts, strict=True)):
        thought = thoughts[int(rng.integers(len(thoughts)))]
        root = list(pair.good.list_past())[-1]
        turns = splice(pair, length, thought, reply)
        rows += [_make_row(root, f">{place}.{k}", turn, pair.good) for k, turn in enumerate(turns)]
    return rows


def mark_errors(pairs: Sequence[Pair], ask: Ask, judge: str, passes: Sequence[str]) -> list[int]:
    """Return how many turns of each bad episode are kept: up to the first that the model finds wrong, or all.

    The model is asked about the turns in their order, and about no turn after the one that it finds wrong.
    """
    cuts = [0] * len(pairs)
    waiting = list(range(len(pairs)))
    while waiting:
        questions = [_make_question(pairs[place], cuts[place], judge, place) for place in waiting]
        judged = [samples[0].text.casefold() for samples in ask(questions)]
        for place in waiting:
            cuts[place] += 1
        found = {place for place, text in zip(waiting, judged, strict=True) if not any(word in text for word in passes)}
        waiting = [place for place in waiting if place not in found and cuts[place] < pairs[place].bad.depth]
    return cuts


def _make_question(pair: Pair, turn: int, judge: str, place: int) -> Row:
    """Return the problem of judging a turn of the bad episode, from what came before it."""
    root = list(pair.bad.list_past())[-1].row
    said = [(node.action, observe(node)) for node in walk(pair.bad)[: turn + 1]]
    text = write_judgement(judge, str(root["prompt"][-1]["content"]), said)
    return root | {"id": f"{root['id']}?{place}.{turn}", "prompt": [{"role": "user", "content": text}]}


def write_judgement(judge: str, task: str, turns: Sequence[tuple[str, str]]) -> str:
    """Return the question about the last of some turns, each an action with what was observed after it."""
    *before, (action, observation) = turns
    history = "\n".join(f"{said}\n{seen}" for said, seen in before)
    return fill_template(judge, {"task": task, "history": history, "action": action, "observation": observation})


def observe(node: Node) -> str:
    """Return what the environment answered to the turn that led to a state; empty if the episode has ended there."""
    last = node.row["prompt"][-1]
    return str(last["content"]) if last["role"] == "user" else ""


def splice(pair: Pair, length: int, thought: str, reply: str) -> list[Turn]:
    """Return the turns to be learned of a bad episode that is cut after `length` turns and goes on as the good one.

    After the thought come the good turns after the last state that both share, or, if the cut lies before that state,
    after the cut. Raise StepError for episodes that do not begin in the same state.
    """
    root, other = (list(end.list_past())[-1] for end in (pair.good, pair.bad))
    if root is not other:
        raise StepError("state_revisions: two episodes without a common state cannot be spliced")
    good, bad = walk(pair.good), walk(pair.bad)
    shared = 0
    while shared < min(len(bad), len(good)) and bad[shared].action == good[shared].action:
        shared += 1
    messages = list(root.row["prompt"])
    for node in bad[:length]:
        messages = [*messages, _say(node.action), _hear(observe(node))]
    turns = [Turn(messages, thought)]
    messages = [*messages, _say(thought), _hear(reply)]
    for node in good[min(shared, length) :]:
        turns.append(Turn(messages, node.action))
        messages = [*messages, _say(node.action), _hear(observe(node))]
    return turns


def walk(node: Node) -> list[Node]:
    """Return the states on the way to one, the first state of the problem left out."""
    return list(reversed(list(node.list_past())))[1:]


def draw(items: Sequence[Item], count: int, rng: np.random.Generator) -> list[Item]:
    """Return at most `count` items, drawn at random, in their order."""
    chosen = rng.permutation(len(items))[:count]
    return [items[int(place)] for place in sorted(chosen)]


def _list_turns(root: Node, place: int, end: Node) -> Iterator[Row]:
    """Yield the turns of an episode as it is."""
    for number, node in enumerate(walk(end)):
        assert node.parent is not None
        yield _make_row(root, f"={place}.{number}", Turn(node.parent.row["prompt"], node.action), end)


def _make_row(root: Node, name: str, turn: Turn, end: Node) -> Row:
    return root.row | {
        "id": f"{root.row['id']}{name}",
        "prompt": turn.prompt,
        "text": turn.text,
        "finished": True,
        "score": end.earned,
    }


def _say(text: str) -> Row:
    return {"role": "assistant", "content": text}


def _hear(text: str) -> Row:
    return {"role": "user", "content": text}
