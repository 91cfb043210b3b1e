"""The layout of a plan's steps in a picture: layers from left to right, in the order of their needs."""

from dataclasses import dataclass
from itertools import pairwise

from schemas.plan import Plan

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 144, 46, 28, 14, 6
Place = tuple[str, int]
"""A step, or a lane for edges, and its column."""


@dataclass(frozen=True)
class Node:
    """A step's box; x and y are its upper left corner, in pixels."""

    name: str
    kind: str
    state: str
    x: float
    y: float


@dataclass(frozen=True)
class Picture:
    """Boxes, edges as SVG paths, and the size that holds them."""

    nodes: list[Node]
    edges: list[str]
    width: float
    height: float


def draw_steps(plan: Plan, states: dict[str, str]) -> Picture:
    """Place each step one column after the last that it needs, next to its parents; long edges keep a lane free."""
    names = {step.name for step in plan.steps}
    parents = {step.name: [need for need in step.needs if need in names] for step in plan.steps}
    column: dict[str, int] = {}
    for step in plan.steps:
        column[step.name] = 1 + max((column[need] for need in parents[step.name]), default=-1)
    chains = [_make_chain(parent, name, column) for name, makers in parents.items() for parent in makers]
    row = _assign_rows(chains, column)
    at = {p: (MARGIN + p[1] * (WIDTH + GAP_X), MARGIN + row[p] * (HEIGHT + GAP_Y)) for p in row}
    nodes = [Node(s.name, s.kind, states.get(s.name, "pending"), *at[s.name, column[s.name]]) for s in plan.steps]
    width = max((x for x, _ in at.values()), default=0) + WIDTH + MARGIN
    height = max((y for _, y in at.values()), default=0) + HEIGHT + MARGIN
    return Picture(nodes, [_draw_edge([at[place] for place in chain]) for chain in chains], width, height)


def _make_chain(parent: str, name: str, column: dict[str, int]) -> list[Place]:
    """Return the places an edge goes through: its ends, and between them lanes that all edges of the parent share."""
    lanes = [(f"{parent} →", layer) for layer in range(column[parent] + 1, column[name])]
    return [(parent, column[parent]), *lanes, (name, column[name])]


def _assign_rows(chains: list[list[Place]], column: dict[str, int]) -> dict[Place, int]:
    """Return rows of steps and lanes, each column in the order of the mean row of what comes before."""
    before: dict[Place, set[Place]] = {(name, layer): set() for name, layer in column.items()}
    for chain in chains:
        for left, right in pairwise(chain):
            before.setdefault(right, set()).add(left)
    row: dict[Place, int] = {}
    for layer in range(max(column.values(), default=-1) + 1):
        members = [place for place in before if place[1] == layer]
        mean = {p: sum(row[left] for left in before[p]) / max(1, len(before[p])) for p in members}
        for number, place in enumerate(sorted(members, key=lambda p: (mean[p], p))):
            row[place] = number
    return row


def _draw_edge(places: list[tuple[float, float]]) -> str:
    """Return a curve from the right of the first box to the left of the last, straight through the lanes between."""
    path, middle = f"M{places[0][0] + WIDTH:g} {places[0][1] + HEIGHT / 2:g}", HEIGHT / 2
    for (x1, y1), (x2, y2) in pairwise(places):
        start, end = x1 + WIDTH, x2
        bend = GAP_X / 2 + 4
        left, right = y1 + middle, y2 + middle
        path += f"L{start:g} {left:g}C{start + bend:g} {left:g} {end - bend:g} {right:g} {end:g} {right:g}"
    return path
