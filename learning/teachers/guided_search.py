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

from learning.data.rows import Row, read_metadata
from schemas.errors import StepError

Path = tuple[str, ...]
Rate = Annotated[float, Field(ge=0, le=1)]
MAPS = ("findings", "expert", "support")
STEEPNESS = 4.0
"""How fast the value of a path leaves 0.5 as its support grows: our choice."""


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
    """Write the findings that an expert-guided tree search inspects, then the answer: `b 22, e 30 #### high`.

    A row's metadata has three maps from the name of a finding: `findings` to its text, `expert` to the weight that the
    expert gives it, `support` to how strongly it speaks for the right answer (−1 to 1). The value of a path grows with
    the mean support of its findings. `guidance` 0 searches without the expert. Raise StepError if the row has no such
    maps or no answer.
    """
    findings, expert, support = read_findings(row)
    names = [str(name) for name in rng.permutation(sorted(findings))]

    def priors(path: Path) -> Mapping[str, float]:
        left = [name for name in names if name not in path]
        return mix_priors(expert, left, guidance) if len(path) < questions and left else {}

    def value(path: Path) -> float:
        return 1 / (1 + math.exp(-STEEPNESS * sum(support[name] for name in path) / len(path))) if path else 0.5

    path = find_most_visited(search_tree(priors, value, simulations=simulations, exploration=exploration))
    return f"{', '.join(f'{name} {findings[name]}' for name in path)} {marker} {row['answer']}"


def read_findings(row: Row) -> tuple[dict[str, str], dict[str, float], dict[str, float]]:
    """Return a row's findings, the expert's weights and the support. Raise StepError if one is missing."""
    maps = [read_metadata(row).get(key) for key in MAPS]
    findings, expert, support = (each if isinstance(each, dict) else {} for each in maps)
    if not findings or not findings.keys() == expert.keys() == support.keys():
        raise StepError(
            f"teacher guided_search: row {row.get('id')}: its metadata needs `findings`, `expert` and `support`, three "
            "maps with the same names"
        )
    if row["answer"] is None:
        raise StepError(f"teacher guided_search: row {row['id']} has no answer")
    try:
        weights, signs = ({name: float(each[name]) for name in findings} for each in (expert, support))
    except (TypeError, ValueError) as error:
        raise StepError(f"teacher guided_search: row {row['id']}: `expert` and `support` are numbers") from error
    return {name: str(text) for name, text in findings.items()}, weights, signs
