"""A long text taken apart by a plan made beforehand, each piece given to a model, the answers put together again.

λ-RLM ("The Y-Combinator for LLMs", 2026, arXiv:2603.20105): f = λP. M(P) if |P| ≤ K, else ⊕ (map f (split P k*)). The
recursion is a fixed point over lengths that shrink, so it ends whatever the model says.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from learning.solvers.combinators import apply_to_all, split_text

Tree = str | list["Tree"]
"""A piece, or the pieces that it was split into."""
A = TypeVar("A")


@dataclass(frozen=True)
class Plan:
    """How a text of some length is taken apart: `pieces` at each of `depth` levels, down to `window` characters."""

    pieces: int
    depth: int
    window: int

    @property
    def calls(self) -> int:
        """Calls of the model: k^d."""
        return self.pieces**self.depth


def plan_split(length: int, window: int, cost_input: float = 1.0, cost_compose: float = 100.0) -> Plan:
    """Return the cheapest plan under a linear cost: k* = ⌈√(n·c_in/c_⊕)⌉, at least 2, and d = ⌈log_k*(n/K)⌉.

    `length` n and `window` K are characters; `cost_input` is that of a character given to the model, `cost_compose`
    that of putting one more answer to the others.
    """
    if length <= window:
        return Plan(1, 0, window)
    pieces = max(2, math.ceil(math.sqrt(length * cost_input / cost_compose)))
    depth = 1
    while window * pieces**depth < length:
        depth += 1
    return Plan(pieces, depth, window)


def take_apart(text: str, how: Plan, separator: str = "") -> Tree:
    """Return pieces of at most `window` characters."""
    if len(text) <= how.window:
        return text
    return apply_to_all(lambda piece: take_apart(piece, how, separator), split_text(text, how.pieces, separator))


def iterate_leaves(tree: Tree) -> Iterator[str]:
    """Yield the pieces from left to right."""
    if isinstance(tree, str):
        yield tree
    else:
        for part in tree:
            yield from iterate_leaves(part)


def combine_tree(tree: Tree, answers: Iterator[A], combine: Callable[[list[A]], A]) -> A:
    """Return the answers of the pieces, from left to right, combined level by level."""
    if isinstance(tree, str):
        return next(answers)
    return combine(apply_to_all(lambda part: combine_tree(part, answers, combine), tree))
