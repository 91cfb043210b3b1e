"""Where the steps of a plan go in a picture: layers from left to right, in the order of what they wait for."""

from dataclasses import dataclass

from schemas.plan import Plan

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 158, 46, 46, 18, 8


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


def draw(plan: Plan, states: dict[str, str]) -> Picture:
    """Put each step one column after the last it waits for, beside its parents."""
    names = {step.name for step in plan.steps}
    parents = {step.name: [need for need in step.needs if need in names] for step in plan.steps}
    column: dict[str, int] = {}
    for step in plan.steps:
        column[step.name] = 1 + max((column[need] for need in parents[step.name]), default=-1)
    row: dict[str, float] = {}
    for layer in range(max(column.values(), default=0) + 1):
        members = [step.name for step in plan.steps if column[step.name] == layer]
        mean = {n: sum(row[p] for p in parents[n]) / len(parents[n]) if parents[n] else 0.0 for n in members}
        for place, name in enumerate(sorted(members, key=lambda n: (mean[n], n))):
            row[name] = place
    at = {n: (MARGIN + column[n] * (WIDTH + GAP_X), MARGIN + row[n] * (HEIGHT + GAP_Y)) for n in column}
    nodes = [Node(s.name, s.kind, states.get(s.name, "pending"), *at[s.name]) for s in plan.steps]
    edges = [_edge(at[parent], at[name]) for name, known in parents.items() for parent in known]
    width = max((x for x, _ in at.values()), default=0) + WIDTH + MARGIN
    height = max((y for _, y in at.values()), default=0) + HEIGHT + MARGIN
    return Picture(nodes, edges, width, height)


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    """A curve from the right of one box to the left of another."""
    x1, y1, x2, y2 = start[0] + WIDTH, start[1] + HEIGHT / 2, end[0], end[1] + HEIGHT / 2
    bend = GAP_X / 2 + 4
    return f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
