"""City traffic: queues at the ends of roads, and a signal at every intersection. Vehicles drive given routes.

A folder has the city. `roads.json`: `intersections`, a list of names, and `roads`, each with `id`, `to` (an
intersection, or null where the road leaves the city), `way` ("ns" or "ew") and `travel`, the steps of driving along it.
`flow.json`: a list of flows, each with `route` (ids of roads), `start`, `every` and `count` of its vehicles.
"""

import json
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from schemas.errors import StepError

ROADS, FLOW = "roads.json", "flow.json"
WAYS = ("ns", "ew")
"""Directions that a signal lets go, by its number."""
MOST_ROADS = 4
"""Most roads that end at an intersection."""


@dataclass(frozen=True)
class Road:
    """A road in one direction."""

    id: str
    to: int | None
    """Number of the intersection at its end; None: it leaves the city."""
    way: int
    """Number of the signal at which its vehicles go."""
    travel: int


@dataclass(frozen=True)
class Flow:
    """Vehicles of one route: the numbers of its roads, and when they come."""

    route: tuple[int, ...]
    start: int
    every: int
    count: int


@dataclass(frozen=True)
class Network:
    """Intersections, roads and flows, as the files say."""

    intersections: tuple[str, ...]
    roads: tuple[Road, ...]
    flows: tuple[Flow, ...]

    def find_ends(self, intersection: int) -> list[int]:
        """Return the numbers of the roads that end at an intersection, those of the first way first."""
        ending = [n for n, road in enumerate(self.roads) if road.to == intersection]
        return sorted(ending, key=lambda n: (self.roads[n].way, n))


def read_network(folder: Path) -> Network:
    """Return the city in a folder. Raise StepError for files that are missing or do not fit each other."""
    try:
        laid, flows = json.loads((folder / ROADS).read_text()), json.loads((folder / FLOW).read_text())
        places = {name: n for n, name in enumerate(laid["intersections"])}
        roads = tuple(
            Road(
                road["id"], None if road["to"] is None else places[road["to"]], WAYS.index(road["way"]), road["travel"]
            )
            for road in laid["roads"]
        )
        numbers = {road.id: n for n, road in enumerate(roads)}
        read = tuple(
            Flow(tuple(numbers[name] for name in flow["route"]), flow["start"], flow["every"], flow["count"])
            for flow in flows
        )
        network = Network(tuple(places), roads, read)
        _check(network)
    except (OSError, ValueError, KeyError, TypeError) as error:
        advice = f"see learning/control/worlds/traffic.py for {ROADS} and {FLOW}"
        raise StepError(f"city: {folder.name}: {type(error).__name__}: {error}; {advice}") from error
    return network


def _check(network: Network) -> None:
    """Raise ValueError for a city in which vehicles cannot drive."""
    if len(network.intersections) < 2:
        raise ValueError("a city needs two intersections at least")
    for road in network.roads:
        if road.travel < 1:
            raise ValueError(f"road {road.id} takes {road.travel} steps; 1 is the least")
    for n, name in enumerate(network.intersections):
        if not 1 <= len(network.find_ends(n)) <= MOST_ROADS:
            raise ValueError(f"intersection {name} has {len(network.find_ends(n))} roads that end there, not 1 to 4")
    for flow in network.flows:
        ends = [network.roads[road].to for road in flow.route]
        if not ends or None in ends[:-1] or ends[-1] is not None or min(flow.every, flow.count) < 1 or flow.start < 0:
            raise ValueError("a route leaves the city at its last road alone, and its vehicles come one by one")


@dataclass
class Traffic:
    """Vehicles on the roads of a network.

    In every step the intersections let vehicles go, by themselves, so that workers may share them; what they let go
    then moves on in the order of the roads.
    """

    network: Network
    saturation: int
    """Most vehicles that leave a road with a green signal in a step."""
    lost: int
    """Steps without any green after a signal has changed."""
    pool: ThreadPoolExecutor | None = None
    workers: int = 1
    clock: int = 0
    entered: int = 0
    left: int = 0
    driven: int = 0
    """Sum over all steps of the vehicles inside."""
    departures: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    """Routes of the vehicles that come at a step."""

    def __post_init__(self) -> None:
        self.ends = [self.network.find_ends(n) for n in range(len(self.network.intersections))]
        self.signals = [0] * len(self.ends)
        self.since = [self.lost] * len(self.ends)
        self.moving: list[deque[tuple[int, tuple[int, ...]]]] = [deque() for _ in self.network.roads]
        self.queues: list[deque[tuple[int, ...]]] = [deque() for _ in self.network.roads]
        self.discharged = [0] * len(self.network.roads)

    @property
    def inside(self) -> int:
        """Return the number of vehicles on all roads."""
        return sum(map(len, self.moving)) + sum(map(len, self.queues))

    def plan(self, rng: np.random.Generator, jitter: int) -> None:
        """Draw when the vehicles of all flows come: at most `jitter` steps late."""
        for flow in self.network.flows:
            late = rng.integers(jitter + 1, size=flow.count)
            for n in range(flow.count):
                self.departures.setdefault(flow.start + n * flow.every + int(late[n]), []).append(flow.route)

    def set_signals(self, signals: Sequence[int]) -> None:
        """Change signals; a signal that changes lets no car pass for the lost steps."""
        for n, signal in enumerate(signals):
            if signal != self.signals[n]:
                self.signals[n], self.since[n] = signal, 0

    def let_go(self, intersections: Sequence[int]) -> list[tuple[int, int]]:
        """Return how many vehicles may leave each road that ends at some intersections."""
        going = []
        for n in intersections:
            for road in self.ends[n]:
                green = self.network.roads[road].way == self.signals[n] and self.since[n] >= self.lost
                going.append((road, min(len(self.queues[road]), self.saturation) if green else 0))
        return going

    def step(self) -> None:
        """Take one step: let vehicles go, move them on, and let new ones enter."""
        shares = [range(w, len(self.ends), self.workers) for w in range(self.workers)]
        parts = self.pool.map(self.let_go, shares) if self.pool is not None else map(self.let_go, shares)
        going = dict(pair for part in parts for pair in part)
        for road in sorted(going):
            self.discharged[road] = going[road]
            for _ in range(going[road]):
                self._enter(self.queues[road].popleft()[1:])
        for n, road in enumerate(self.network.roads):
            while self.moving[n] and self.moving[n][0][0] <= self.clock:
                _, route = self.moving[n].popleft()
                if road.to is None:
                    self.left += 1
                else:
                    self.queues[n].append(route)
        for route in self.departures.get(self.clock, ()):
            self.entered += 1
            self._enter(route)
        self.since = [steps + 1 for steps in self.since]
        self.clock += 1
        self.driven += self.inside

    def _enter(self, route: tuple[int, ...]) -> None:
        """Let a vehicle drive onto the first road of what is left of its route."""
        self.moving[route[0]].append((self.clock + self.network.roads[route[0]].travel, route))

    def describe(self) -> dict[str, Any]:
        """Return what there is at this step, for a trace."""
        queues = [len(queue) for queue in self.queues]
        return {"signals": list(self.signals), "queues": queues, "entered": self.entered, "left": self.left}
