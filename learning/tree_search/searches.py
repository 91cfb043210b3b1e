"""Beam search, best-first search and Monte Carlo tree search in trees of states, for many problems side by side.

Each takes the first states of problems and grows their trees; the model is asked once per round for all of them.
"""

import heapq
import math
from collections.abc import Callable, Sequence

from learning.data.rows import Row
from learning.tree_search.states import Node, States

Judge = Callable[[list[Row], list[str]], list[float | None]]
"""Scores turns in the states in which they were taken; None: it cannot say."""


class Guide:
    """Says how promising states are: what was earned so far, plus `weight` times a judge's score of the last turn.

    `cumulative`: plus the scores of all turns so far instead. A turn that the judge cannot score then leads nowhere.
    """

    def __init__(self, judge: Judge | None = None, weight: float = 0.0, *, cumulative: bool = False) -> None:
        self.judge, self.weight, self.cumulative = judge, weight, cumulative

    def rate(self, nodes: Sequence[Node], earned: Sequence[float] | None = None) -> list[float]:
        """Return the promise of each state; `earned` replaces what was earned so far."""
        worth = [node.earned for node in nodes] if earned is None else list(earned)
        if self.judge is None or self.weight == 0 or not nodes:
            return worth
        befores = [node.parent.row if node.parent is not None else node.row for node in nodes]
        scores = self.judge(befores, [node.action for node in nodes])
        if self.cumulative:
            for node, score in zip(nodes, scores, strict=True):
                before = 0.0 if node.parent is None else node.parent.judged
                node.judged = before + (-math.inf if score is None else self.weight * score)
            return [sum_ + node.judged for sum_, node in zip(worth, nodes, strict=True)]
        return [sum_ + self.weight * (score or 0.0) for sum_, score in zip(worth, scores, strict=True)]


def search_mcts(
    roots: Sequence[Node], states: States, guide: Guide, *, simulations: int, exploration: float, playout_turns: int
) -> None:
    """Grow trees by Monte Carlo tree search (UCT, Kocsis & Szepesvari 2006).

    A simulation walks to an open leaf by mean value + exploration · √(ln N(parent) / N), adds the states to which the
    proposed turns lead, and backs the value of each up: its promise, after `playout_turns` further turns. What is
    exhausted (ended, or without an open state below) is not visited again.
    """
    for _ in range(simulations):
        leaves = [leaf for root in roots if (leaf := _select(root, exploration)) is not None]
        if not leaves:
            break
        states.grow(leaves)
        fresh = [child for leaf in leaves for child in leaf.children]
        values = guide.rate(fresh, states.play_on(fresh, playout_turns))
        for child, value in zip(fresh, values, strict=True):
            child.back_up(value)
        for leaf in leaves:
            _close(leaf)


def _select(root: Node, exploration: float) -> Node | None:
    """Return the open leaf to go on from; None if there is none."""
    if root.closed:
        return None
    node = root
    while node.children:
        log_visits = math.log(node.visits)
        node = max(
            (child for child in node.children if not child.closed),
            key=lambda child: child.value + exploration * math.sqrt(log_visits / child.visits),
        )
    return node


def _close(node: Node) -> None:
    """Mark states before this one as closed of which every next state is."""
    for before in node.list_past():
        before.closed = all(child.closed for child in before.children)
        if not before.closed:
            return


def search_beam(roots: Sequence[Node], states: States, guide: Guide, *, width: int) -> None:
    """Grow trees level by level, from the `width` most promising open states of each.

    Among equals new states come before those that were reached earlier, then those proposed most often.
    """
    seen = [_Seen(root) for root in roots]
    frontiers = [[root] for root in roots]
    while any(frontiers):
        states.grow([node for frontier in frontiers for node in frontier])
        for place, frontier in enumerate(frontiers):
            fresh = [child for node in frontier for child in node.children]
            rated = zip(guide.rate(fresh), fresh, strict=True)
            ranked = [(-promise, seen[place].is_old(node), -node.times, node) for promise, node in rated]
            ranked.sort(key=lambda one: one[:-1])
            frontiers[place] = [node for *_, node in ranked if not node.closed][:width]


def search_best_first(roots: Sequence[Node], states: States, guide: Guide, *, expansions: int) -> None:
    """Grow each tree `expansions` times, from its most promising open state; among equals as in `search_beam`."""
    frontiers = [Frontier(root) for root in roots]
    for _ in range(expansions):
        if not expand_best(frontiers, states, guide):
            break


def expand_best(frontiers: Sequence["Frontier"], states: States, guide: Guide) -> bool:
    """Grow each tree once, from its most promising open state; return whether there was one to grow."""
    chosen = [frontier.pop() for frontier in frontiers]
    growing = [node for node in chosen if node is not None]
    if growing:
        states.grow(growing)
    for frontier, node in zip(frontiers, chosen, strict=True):
        if node is not None:
            frontier.push(node.children, guide.rate(node.children))
    return bool(growing)


class Frontier:
    """The open states of a tree, the most promising first; among equals as in `search_beam`."""

    def __init__(self, root: Node) -> None:
        self.seen, self.number = _Seen(root), 0
        self.queue: list[tuple[float, bool, int, int, Node]] = [(0.0, False, 0, 0, root)]

    def pop(self) -> Node | None:
        """Take out the most promising state; None if there is none."""
        return heapq.heappop(self.queue)[-1] if self.queue else None

    def push(self, nodes: Sequence[Node], promises: Sequence[float]) -> None:
        """Add the states among these that are open."""
        for promise, node in zip(promises, nodes, strict=True):
            is_old = self.seen.is_old(node)
            if not node.closed:
                self.number += 1
                heapq.heappush(self.queue, (-promise, is_old, -node.times, self.number, node))


class _Seen:
    """The states of a tree that were reached, each with the most that was earned on the way."""

    def __init__(self, root: Node) -> None:
        self.earned = {root.saved: root.earned}

    def is_old(self, node: Node) -> bool:
        """Return whether a state was reached before with as much; note it."""
        if node.earned <= self.earned.get(node.saved, -math.inf):
            return True
        self.earned[node.saved] = node.earned
        return False


def rate_below(root: Node) -> dict[Node, float]:
    """Return the highest sum of rewards that was reached in or below every state of a tree."""
    best: dict[Node, float] = {}
    for node in reversed(list(root.list_all())):
        best[node] = max([node.earned, *(best[child] for child in node.children)])
    return best
