"""How samples of a model come about: each for itself, or grown in a tree where what is good is looked at more closely.

`ask(rows)` gives the stage's number of samples for each prompts row, `score(rows, texts)` what its rewards say of them.
A search returns what it tried: rows with `text`, `whole` (it ended by itself) and `score`; samples that compete with
each other share an id.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.evaluation.sampled_answers import AnswerSample

Ask = Callable[[Sequence[Row]], list[list[AnswerSample]]]
Score = Callable[[list[Row], list[str]], list[float | None]]


def samples(problems: list[Row], ask: Ask, score: Score) -> list[Row]:
    """Every sample of a problem for itself."""
    groups = ask(problems)
    rows = [row for row, group in zip(problems, groups, strict=True) for _ in group]
    return _score_samples(rows, [sample for group in groups for sample in group], score)


def mcts(
    problems: list[Row],
    ask: Ask,
    score: Score,
    *,
    steps: Annotated[int, Field(ge=1)],
    simulations: Annotated[int, Field(ge=1)],
    exploration: Annotated[float, Field(ge=0)] = 1.0,
    separator: str = "\n",
) -> list[Row]:
    """Monte Carlo tree search over texts of `steps` parts (UCT, Kocsis & Szepesvari 2006).

    A part is a completion of the prompt with all parts so far behind it. Each simulation walks from the root to a leaf
    by mean value plus `exploration`·sqrt(ln N(parent)/N), samples its continuations, and backs their scores up. Parts
    with the same past compete; the score that is returned is the mean over everything that was found below.
    """
    roots = [Node(row, separator=separator) for row in problems]
    for _ in range(simulations):
        leaves = [leaf for root in roots if (leaf := root.select(exploration, steps)) is not None]
        if not leaves:
            break
        rows = [leaf.row for leaf in leaves]
        groups = ask(rows)
        flat = [row for row, group in zip(rows, groups, strict=True) for _ in group]
        rows_scored = iter(_score_samples(flat, [sample for group in groups for sample in group], score))
        for leaf, group in zip(leaves, groups, strict=True):
            leaf.expand([next(rows_scored) for _ in group])
    return [tried for root in roots for tried in root.tried()]


@dataclass
class Node:
    """A past: the row whose prompt shows it. `visits` and `total` are those of all that was scored below."""

    row: Row
    parent: "Node | None" = None
    made: Row | None = None
    depth: int = 0
    separator: str = "\n"
    visits: int = 0
    total: float = 0.0
    closed: bool = False
    children: list["Node"] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Mean of the scores that were backed up."""
        return self.total / self.visits if self.visits else 0.0

    def select(self, exploration: float, steps: int) -> "Node | None":
        """The leaf to go on from; None when nothing below is open."""
        if self.closed or self.depth >= steps:
            return None
        if not self.children:
            return self
        open_to = [c for c in self.children if not c.closed and c.depth < steps]
        for child in sorted(open_to, key=lambda c: -c.promise(exploration)):
            if (leaf := child.select(exploration, steps)) is not None:
                return leaf
        self.closed = True
        return None

    def promise(self, exploration: float) -> float:
        """Upper confidence bound of a child that was scored."""
        assert self.parent is not None
        return self.value + exploration * math.sqrt(math.log(max(self.parent.visits, 1)) / self.visits)

    def expand(self, continuations: list[Row]) -> None:
        """Add the different continuations that could be scored, and back their scores up; without any it ends here."""
        texts: set[str] = set()
        for made in continuations:
            if made["score"] is not None and made["text"] not in texts:
                texts.add(made["text"])
                child = self._child(made)
                self.children.append(child)
                child.back_up(made["score"])
        self.closed = not self.children

    def back_up(self, score: float) -> None:
        """Count a score here and at every past of it."""
        node: Node | None = self
        while node is not None:
            node.visits += 1
            node.total += score
            node = node.parent

    def tried(self) -> list[Row]:
        """Every part of the tree with its mean value, parents first."""
        here = [] if self.made is None else [self.made | {"score": self.value}]
        return here + [tried for child in self.children for tried in child.tried()]

    def _child(self, made: Row) -> "Node":
        *before, last = self.row["prompt"]
        shown = {**last, "content": last["content"] + self.separator + made["text"]}
        row = self.row | {"id": f"{self.row['id']}/{len(self.children)}", "prompt": [*before, shown]}
        return Node(row, self, made, self.depth + 1, self.separator, closed=not made["finished"])


def _score_samples(rows: list[Row], samples: list[AnswerSample], score: Score) -> list[Row]:
    scores = score(rows, [sample.text for sample in samples])
    return [
        row | {"text": s.text, "finished": s.finish == "stop", "score": value}
        for row, s, value in zip(rows, samples, scores, strict=True)
    ]
