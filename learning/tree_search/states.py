"""Trees of an environment's states: the model proposes actions, which are carried out from states that were saved.

A search goes on from any state; the turns before it are not sampled again, nor carried out again if the environment's
episodes have `save` and `restore`. A tree depends on the problem, the proposals and the environment alone.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from learning.data.rows import Row
from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import Outcome, SavableEpisode
from learning.environments.replayed import make_savable
from schemas.errors import StepError
from schemas.use import EnvUse


@dataclass(frozen=True)
class Candidate:
    """A turn that the model proposes."""

    text: str
    finished: bool = True
    """Whether the model ended it; what the length limit cut is not carried out."""


Propose = Callable[[list[Row]], list[list[Candidate]]]
"""A function from problems, as the model sees them, to turns that it proposes for each."""


@dataclass(eq=False)
class Node:
    """A state, and how the search has continued it so far."""

    row: Row
    """The problem as the model sees it here: its prompt has all turns so far, its id the place in the tree."""
    saved: str | None
    """The state, as JSON; None: the episode has ended."""
    earned: float = 0.0
    """Discounted sum of the rewards so far."""
    depth: int = 0
    parent: "Node | None" = None
    action: str = ""
    """The turn that led here."""
    times: int = 1
    """How often the model proposed that turn."""
    closed: bool = False
    """Whether nothing below is open."""
    children: list["Node"] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    judged: float = 0.0
    """Weighted sum of what a judge said of the turns so far, where the search asks for that."""
    reached: "Node | None" = None
    """Of a first state: where the best episode led that was played on outside of the tree."""

    @property
    def value(self) -> float:
        """Return the mean of the values that were backed up."""
        return self.total / self.visits if self.visits else 0.0

    def back_up(self, value: float) -> None:
        """Count a value here and in every state before this one."""
        for node in self.list_past():
            node.visits += 1
            node.total += value

    def list_past(self) -> Iterator["Node"]:
        """Yield this state and those before it, the first state last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def list_all(self) -> Iterator["Node"]:
        """Yield this state and all below it, earlier ones first."""
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))


class States:
    """Grows trees of an environment's states.

    `gamma` discounts the reward of each later turn; a state whose conversation has more than `max_characters`
    characters, or `max_turns` turns, is not continued.
    """

    def __init__(self, env: EnvUse, propose: Propose, *, gamma: float = 1.0, max_characters: int = 100_000) -> None:
        if env.context is not None:
            raise StepError("tree search: `env.context` has no effect here, the model sees all turns; remove it")
        try:
            self.environment = build_environment(env, {})
        except KeyError as port:
            raise StepError(f"tree search: {port} refers to a stage's output; give the environment a folder") from None
        self.name, self.max_turns = env.use, env.max_turns
        self.propose, self.gamma, self.max_characters = propose, gamma, max_characters
        self.proposed: dict[str, list[Candidate]] = {}
        """What was proposed in each state, by the id of its row."""

    def plant(self, problem: Row) -> Node:
        """Return the first state of a problem. Raise StepError if its saved form is no JSON."""
        episode = self._begin(problem)
        return Node(problem, self._save(problem, episode))

    def grow(self, nodes: Sequence[Node]) -> None:
        """Give each state the states to which different proposed turns lead, in the order of the proposals."""
        self._ask(nodes)
        for node in nodes:
            texts: dict[str, int] = {}
            for candidate in self.proposed[node.row["id"]]:
                if candidate.finished:
                    texts[candidate.text] = texts.get(candidate.text, 0) + 1
            node.children = [self._step(node, text, place, times) for place, (text, times) in enumerate(texts.items())]
            node.closed = all(child.closed for child in node.children)

    def play_on(self, nodes: Sequence[Node], turns: int) -> list[float]:
        """Return what is earned in all when the model goes on for so many turns with its first proposal."""
        now, running = list(nodes), range(len(nodes))
        for _ in range(turns):
            running = [place for place in running if not now[place].closed]
            self._ask([now[place] for place in running])
            for place in running:
                proposals = self.proposed[now[place].row["id"]]
                first = next((candidate.text for candidate in proposals if candidate.finished), None)
                if first is not None:  # without one it stays here, and the next turn finds none either
                    # Place 0 is that of this turn in `grow`, too, so that the state is asked for its proposals once.
                    now[place] = self._step(now[place], first, 0, 1)
        for node in now:
            root = list(node.list_past())[-1]
            root.reached = max(root.reached or root, node, key=_rank)
        return [node.earned for node in now]

    def _ask(self, nodes: Sequence[Node]) -> None:
        """Let the model propose turns in the states in which it has not yet, all in one call."""
        rows = {node.row["id"]: node.row for node in nodes if node.row["id"] not in self.proposed}
        if rows:
            self.proposed |= dict(zip(rows, self.propose(list(rows.values())), strict=True))

    def _begin(self, row: Row) -> SavableEpisode:
        seed = int.from_bytes(hashlib.sha256(str(row["id"]).encode()).digest()[:8], "big") >> 1
        return make_savable(self.environment.begin(row, seed))

    def _save(self, row: Row, episode: SavableEpisode) -> str:
        """Return the state of an episode as text, which later turns cannot change."""
        try:
            return json.dumps(episode.save(), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise StepError(f"env {self.name}: the saved state of {row['id']} is no JSON: {error}") from error

    def _step(self, node: Node, text: str, place: int, times: int) -> Node:
        """Return the state to which a turn leads. Raise StepError if the environment fails."""
        root = list(node.list_past())[-1].row
        assert node.saved is not None
        episode = self._begin(root)
        try:
            episode.restore(json.loads(node.saved))
            outcome = episode.step(text)
        except StepError:
            raise
        except Exception as error:
            what = f"a step in the tree of {root['id']} failed: {type(error).__name__}: {error}"
            raise StepError(f"env {self.name}: {what}") from error
        if not math.isfinite(outcome.reward):
            raise StepError(f"env {self.name}: the reward of a turn of {root['id']} is {outcome.reward}")
        row = self._show(node.row, text, outcome, place)
        ended = outcome.done or node.depth + 1 >= self.max_turns or self._is_long(row)
        return Node(
            row,
            None if outcome.done else self._save(root, episode),
            node.earned + self.gamma**node.depth * outcome.reward,
            node.depth + 1,
            node,
            text,
            times,
            closed=ended,
        )

    def _show(self, row: Row, text: str, outcome: Outcome, place: int) -> Row:
        """Return the problem as the model sees it after a turn."""
        said = [{"role": "assistant", "content": text}, {"role": "user", "content": outcome.observation}]
        return row | {"id": f"{row['id']}/{place}", "prompt": [*row["prompt"], *said[: 1 if outcome.done else 2]]}

    def _is_long(self, row: Row) -> bool:
        return sum(len(str(message["content"])) for message in row["prompt"]) > self.max_characters


def find_best(root: Node) -> list[Node]:
    """Return the states on the way to the highest sum of rewards, the first state left out.

    Among equals it is an episode that has ended, then the shortest, then the one proposed first; where nothing earned
    more than the start, the way is empty.
    """
    known = [*root.list_all(), *([] if root.reached is None else [root.reached])]
    return list(reversed(list(max(known, key=_rank).list_past())))[1:]


def _rank(node: Node) -> tuple[float, bool, int]:
    return node.earned, node.saved is None, -node.depth
