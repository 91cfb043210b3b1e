"""A teacher that searches a tree of sub-questions, guided by an expert, and writes the most visited path.

Monte Carlo tree search with priors: the child with the largest mean value + exploration · prior · √N(parent) / (1 + N)
is visited, where the prior mixes the expert's attention with a uniform distribution. (Stage 1 of EAG-RL, 2025.)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.records import LABELS, VISITS
from learning.toy_tasks.rows import Rate, read_metadata

Path = tuple[str, ...]


@dataclass
class Node:
    """The questions asked so far; children by the next question."""

    path: Path = ()
    prior: float = 1.0
    visits: int = 0
    total: float = 0.0
    children: dict[str, "Node"] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """Return the mean of the backed-up values."""
        return self.total / self.visits if self.visits else 0.0


def search_tree(
    priors: Callable[[Path], Mapping[str, float]],
    value: Callable[[Path], float],
    *,
    simulations: int,
    exploration: float,
) -> Node:
    """Return the tree after `simulations` simulations; `priors` are those of the next questions (none: a leaf).

    Ties go to the question that comes first.
    """
    root = Node()
    for _ in range(simulations):
        node, walked = root, [root]
        while node.visits and (node.children or _grown(node, priors)):
            parent = node
            node = max(parent.children.values(), key=lambda c: _promise(c, parent.visits, exploration))
            walked.append(node)
        reached = value(node.path)
        for passed in walked:
            passed.visits += 1
            passed.total += reached
    return root


def _grown(node: Node, priors: Callable[[Path], Mapping[str, float]]) -> bool:
    node.children = {name: Node((*node.path, name), prior) for name, prior in priors(node.path).items()}
    return bool(node.children)


def _promise(child: Node, parent_visits: int, exploration: float) -> float:
    return child.value + exploration * child.prior * math.sqrt(parent_visits) / (1 + child.visits)


def find_most_visited(root: Node) -> Path:
    """Return the path of most visits from the root to a leaf; ties go to the first child."""
    node = root
    while node.children:
        node = max(node.children.values(), key=lambda child: child.visits)
    return node.path


def mix_priors(expert: Mapping[str, float], left: Sequence[str], guidance: float) -> dict[str, float]:
    """Return guidance · attention + (1 − guidance) · uniform over the remaining questions."""
    total = sum(expert[name] for name in left)
    return {
        name: guidance * (expert[name] / total if total else 1 / len(left)) + (1 - guidance) / len(left)
        for name in left
    }


def guided_search(
    row: Row,
    rng: np.random.Generator,
    *,
    marker: str = "####",
    questions: Annotated[int, Field(ge=1)] = 2,
    simulations: Annotated[int, Field(ge=1)] = 64,
    exploration: Annotated[float, Field(ge=0)] = 1.0,
    guidance: Rate = 0.75,
) -> str:
    """Write the measurements that an expert-guided tree search inspects, then the label: `b 22, e 30 #### high`.

    The value of a path is how strongly its measurements support the right answer. `guidance` 0 searches without the
    expert. Raise StepError if the row is not a record.
    """
    spans, expert = read_metadata(row, "records", lambda about: (about["spans"], about["expert"]))
    sums = {name: sum(map(int, text.partition(":")[2])) for name, text in spans.items()}
    right = 1 if row["answer"] == LABELS[1] else -1
    names = [str(name) for name in rng.permutation(sorted(sums))]

    def priors(path: Path) -> Mapping[str, float]:
        left = [name for name in names if name not in path]
        return mix_priors(expert, left, guidance) if len(path) < questions and left else {}

    def value(path: Path) -> float:
        if not path:
            return 0.5
        speaks = sum(sums[name] - 4.5 * VISITS for name in path) / (4.5 * VISITS * len(path))
        return 1 / (1 + math.exp(-4 * right * speaks))

    path = find_most_visited(search_tree(priors, value, simulations=simulations, exploration=exploration))
    return f"{', '.join(f'{name} {sums[name]}' for name in path)} {marker} {row['answer']}"
