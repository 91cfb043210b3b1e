"""A teacher that searches a tree of sub-questions with an expert in its reward, and writes one of the best paths.

Monte Carlo tree search (UCT, Kocsis & Szepesvári 2006): a question that was not asked yet comes first, then the one
with the largest mean reward + exploration · √(ln N(parent) / N). From there a simulation asks random questions up to
the answer. The expert enters as a part of the reward of what was simulated. (Stage 1 of EAG-RL, Fang et al. 2025.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row, read_metadata
from schemas.errors import StepError

Path = tuple[str, ...]
Rate = Annotated[float, Field(ge=0, le=1)]
AtLeast1 = Annotated[int, Field(ge=1)]
MAPS = ("findings", "expert", "support")
STEEPNESS = 4.0
"""How fast the prediction for a path leaves 0.5 as its support grows: our choice."""


@dataclass
class Node:
    """The questions asked so far; children by the next question."""

    path: Path = ()
    visits: int = 0
    total: float = 0.0
    children: dict[str, "Node"] = field(default_factory=dict)


def search_tree(
    list_next: Callable[[Path], Sequence[str]],
    reward: Callable[[Path], float],
    rng: np.random.Generator,
    *,
    simulations: int,
    exploration: float,
) -> tuple[Node, dict[Path, float]]:
    """Return the tree after `simulations` simulations, and the reward of every complete path that they reached.

    `list_next` gives the next questions (none: the path is complete). Ties go to the question that comes first.
    """
    root, complete = Node(), dict[Path, float]()
    for _ in range(simulations):
        node, walked = root, [root]
        while node.visits and (node.children or _grow(node, list_next)):
            parent = node
            node = max(parent.children.values(), key=lambda child: _compute_bound(child, parent.visits, exploration))
            walked.append(node)
        path = _simulate(node.path, list_next, rng)
        complete[path] = reward(path)
        for passed in walked:
            passed.visits += 1
            passed.total += complete[path]
    return root, complete


def _grow(node: Node, list_next: Callable[[Path], Sequence[str]]) -> bool:
    node.children = {name: Node((*node.path, name)) for name in list_next(node.path)}
    return bool(node.children)


def _compute_bound(child: Node, parent_visits: int, exploration: float) -> float:
    """Return the upper confidence bound of a child's reward, ∞ if it was not visited."""
    if not child.visits:
        return math.inf
    return child.total / child.visits + exploration * math.sqrt(math.log(parent_visits) / child.visits)


def _simulate(path: Path, list_next: Callable[[Path], Sequence[str]], rng: np.random.Generator) -> Path:
    """Return the path continued at random until it is complete."""
    while left := list_next(path):
        path = (*path, left[int(rng.integers(len(left)))])
    return path


def select_best(complete: dict[Path, float], k: int) -> list[Path]:
    """Return the `k` paths of the highest reward; ties go to the path that was reached first."""
    return sorted(complete, key=lambda path: -complete[path])[:k]


def guided_search(
    row: Row,
    rng: np.random.Generator,
    *,
    marker: str = "####",
    questions: AtLeast1 = 2,
    simulations: AtLeast1 = 64,
    exploration: Annotated[float, Field(ge=0)] = 1.0,
    guidance: Rate = 0.33,
    paths: AtLeast1 = 1,
) -> str:
    """Write the findings on a path of an expert-guided tree search, then the answer: `b 22, e 30 #### high`.

    A row's metadata has three maps from the name of a finding: `findings` to its text, `expert` to the weight that the
    expert gives it, `support` to how strongly it speaks for the right answer (−1 to 1). The reward of a path is
    (1 − `guidance`) · prediction + `guidance` · alignment. The prediction for the right answer grows with the mean
    support of its findings; the alignment is |C ∩ E| / |C ∪ E| of its findings C and as many top findings of the
    expert, E. `guidance` 0 searches without the expert. One of the `paths` paths of the highest reward is written,
    drawn at random. Raise StepError if the row has no such maps or no answer.
    """
    findings, expert, support = read_findings(row)
    names = [str(name) for name in rng.permutation(sorted(findings))]
    best = set(sorted(expert, key=lambda name: (-expert[name], name))[:questions])

    def list_next(path: Path) -> Sequence[str]:
        return [name for name in names if name not in path] if len(path) < questions else []

    def reward(path: Path) -> float:
        prediction = 1 / (1 + math.exp(-STEEPNESS * sum(support[name] for name in path) / len(path)))
        return (1 - guidance) * prediction + guidance * len(best & set(path)) / len(best | set(path))

    _, complete = search_tree(list_next, reward, rng, simulations=simulations, exploration=exploration)
    kept = select_best(complete, paths)
    path = kept[int(rng.integers(len(kept)))]
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
