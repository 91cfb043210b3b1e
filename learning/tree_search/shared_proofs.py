"""Provers that search for the same problem at once, and a cache of solutions that all of them read."""

import json
from collections.abc import Sequence

from learning.data.rows import Row
from learning.tree_search.searches import Frontier, Guide, expand_best
from learning.tree_search.states import States, find_best

Cache = dict[str, list[str]]
"""The turns that solve a problem, by its text and metadata."""


def make_key(problem: Row) -> str:
    """Return the text and metadata of a problem, by which its solution is found in a cache."""
    return json.dumps([problem["prompt"], problem["metadata"]])


class Team:
    """Provers of one problem, each with a tree and random streams of its own."""

    def __init__(self, problem: Row, states: States, provers: int) -> None:
        self.key = make_key(problem)
        self.roots = [states.plant(problem | {"id": f"{problem['id']}~{number}"}) for number in range(provers)]
        self.frontiers = [Frontier(root) for root in self.roots]


def search_together(teams: Sequence[Team], states: States, cache: Cache, *, expansions: int, solved: float) -> None:
    """Let every prover expand so many states, or until its problem is in the cache, which it reads before each.

    A prover whose best episode earns `solved` writes its turns to the cache. Provers of a team take turns, teams search
    side by side.
    """
    for _ in range(expansions):
        for number in range(max((len(team.roots) for team in teams), default=0)):
            searching = [team for team in teams if team.key not in cache]
            expand_best([team.frontiers[number] for team in searching], states, Guide())
            for team in searching:
                path = find_best(team.roots[number])
                if path and path[-1].earned >= solved:
                    cache[team.key] = [node.action for node in path]
