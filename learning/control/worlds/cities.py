"""Cities as worlds of a team: every intersection is an agent that chooses its signal. Shapes: N worlds, G agents."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

from learning.control.stepping.spaces import Spaces
from learning.control.worlds.traffic import FLOW, MOST_ROADS, ROADS, WAYS, Network, Traffic, read_network
from schemas.references import DirectoryRef

Count = Annotated[int, Field(ge=1)]
Amount = Annotated[int, Field(ge=0)]
SIZE = 2 * MOST_ROADS + len(WAYS) + 1
"""Numbers that an agent sees: queues and moving vehicles of its roads, its signal, and how long it has been so."""


class City:
    """A parallel environment of PettingZoo: choices are signals, rewards minus the vehicles that wait at them."""

    def __init__(
        self, network: Network, limit: int, hold: int, jitter: int, pays: str, saturation: int, lost: int
    ) -> None:
        """Take a network, and the rules of the traffic."""
        self.metadata = {"name": "city"}
        self.network, self.limit, self.hold, self.jitter, self.pays = network, limit, hold, jitter, pays
        self.saturation, self.lost = saturation, lost
        self.possible_agents = list(network.intersections)

    def observation_space(self, agent: str) -> gymnasium.spaces.Space:
        """Return the space of what an intersection sees."""
        return gymnasium.spaces.Box(0.0, np.inf, (SIZE,), np.float32)

    def action_space(self, agent: str) -> gymnasium.spaces.Space:
        """Return the space of signals."""
        return gymnasium.spaces.Discrete(len(WAYS))

    def close(self) -> None:
        """Keep nothing open."""

    def observe(self) -> dict[str, np.ndarray]:
        """Return what every intersection sees; roads that it lacks are empty."""
        seen = {}
        for n, name in enumerate(self.network.intersections):
            shown = np.zeros(SIZE, np.float32)
            for road in self.traffic.ends[n]:
                way = self.network.roads[road].way
                place = 2 * way + [r for r in self.traffic.ends[n] if self.network.roads[r].way == way].index(road)
                shown[place] = len(self.traffic.queues[road]) / 10
                shown[MOST_ROADS + place] = len(self.traffic.moving[road]) / 10
            shown[2 * MOST_ROADS + self.traffic.signals[n]] = 1.0
            shown[-1] = min(self.traffic.since[n], 100) / 10
            seen[name] = shown
        return seen

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin with empty roads, and draw when vehicles come."""
        self.traffic = Traffic(self.network, self.saturation, self.lost)
        self.traffic.plan(np.random.default_rng(seed), self.jitter)
        self.agents = list(self.possible_agents)
        return self.observe(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        """Set all signals and let traffic go on for the steps that they are held."""
        self.traffic.set_signals([actions[name] for name in self.network.intersections])
        waiting, before = [0] * len(self.possible_agents), self.traffic.driven
        for _ in range(self.hold):
            self.traffic.step()
            for n, roads in enumerate(self.traffic.ends):
                waiting[n] += sum(len(self.traffic.queues[road]) for road in roads)
        planned = sum(flow.count for flow in self.network.flows)
        spent = (self.traffic.driven - before) / planned
        earned = {
            name: -spent if self.pays == "travel_time" else -waiting[n] / (10 * self.hold)
            for n, name in enumerate(self.possible_agents)
        }
        over = self.traffic.clock >= self.limit
        self.agents = [] if over else self.agents
        ended, cut = dict.fromkeys(earned, False), dict.fromkeys(earned, over)
        return self.observe(), earned, ended, cut, {name: {} for name in earned}


def city(
    *,
    roads: DirectoryRef,
    limit: Count = 200,
    hold: Count = 5,
    jitter: Amount = 3,
    saturation: Count = 1,
    lost: Amount = 2,
    pays: Literal["waiting", "travel_time"] = "waiting",
) -> City:
    """Return the city in a folder, whose intersections choose between two signals every `hold` steps.

    Rewards are minus the vehicles that wait, or with `pays: travel_time` such that an episode returns minus the mean
    time of a vehicle in the city, that of those still inside until the end.
    """
    return City(read_network(Path(roads)), limit, hold, jitter, pays, saturation, lost)


def in_turns(observation_NO: np.ndarray, spaces: Spaces, *, green: Count = 10) -> np.ndarray:
    """Change every signal of a city after `green` steps."""
    seen_NGS = observation_NO.reshape(len(observation_NO), spaces.agents, SIZE)
    signal_NG = seen_NGS[..., 2 * MOST_ROADS + 1].astype(int)
    return np.where(seen_NGS[..., -1] * 10 >= green, 1 - signal_NG, signal_NG)


def longest_queue(observation_NO: np.ndarray, spaces: Spaces) -> np.ndarray:
    """Let those go at every intersection who are more; keep the signal if they are as many."""
    seen_NGS = observation_NO.reshape(len(observation_NO), spaces.agents, SIZE)
    signal_NG = seen_NGS[..., 2 * MOST_ROADS + 1].astype(int)
    first_NG, second_NG = seen_NGS[..., :2].sum(-1), seen_NGS[..., 2:MOST_ROADS].sum(-1)
    return np.where(first_NG == second_NG, signal_NG, (second_NG > first_NG).astype(int))


def lay_grid(
    context: Any,
    *,
    rows: Count = 2,
    columns: Count = 2,
    travel: Count = 5,
    across: Count = 2,
    down: Count = 6,
    count: Count = 60,
    turning: Count = 8,
) -> dict[str, float]:
    """Write a grid of intersections with roads in one direction through every row and column.

    A vehicle enters each row every `across` steps and each column every `down` steps; every `turning` steps one enters
    the first row and leaves by the last column. `count` are the vehicles of a flow.
    """
    names = [f"i{r}{c}" for r in range(rows) for c in range(columns)]
    roads, flows = [], []
    lines = [("ew", r, [f"i{r}{c}" for c in range(columns)], across) for r in range(rows)]
    lines += [("ns", c, [f"i{r}{c}" for r in range(rows)], down) for c in range(columns)]
    for way, number, passed, every in lines:
        own = [f"{way}{number}-{n}" for n in range(len(passed) + 1)]
        roads += [
            {"id": name, "to": to, "way": way, "travel": travel} for name, to in zip(own, [*passed, None], strict=True)
        ]
        flows.append({"route": own, "start": 0, "every": every, "count": count})
    crossing = [f"ew0-{n}" for n in range(columns)] + [f"ns{columns - 1}-{n}" for n in range(1, rows + 1)]
    flows.append({"route": crossing, "start": 0, "every": turning, "count": max(1, count // 4)})
    folder = context.output("result")
    (folder / ROADS).write_text(json.dumps({"intersections": names, "roads": roads}, indent=1) + "\n")
    (folder / FLOW).write_text(json.dumps(flows, indent=1) + "\n")
    return {"intersections": len(names), "roads": len(roads), "vehicles": sum(flow["count"] for flow in flows)}


def trace_city(
    context: Any, *, workers: Count = 1, limit: Count = 200, green: Count = 10, jitter: Amount = 3
) -> dict[str, float]:
    """Write what happens in the input `city`, step by step, while its signals change in turns.

    The intersections of a step are shared among threads; how many does not change the trace.
    """
    with ThreadPoolExecutor(workers) as pool:
        traffic = Traffic(read_network(context.input("city")), saturation=1, lost=2, pool=pool, workers=workers)
        traffic.plan(np.random.default_rng(context.seed), jitter)
        trace = []
        for step in range(limit):
            if step % green == 0:
                traffic.set_signals([1 - signal for signal in traffic.signals])
            traffic.step()
            trace.append(traffic.describe())
    (context.output("result") / "trace.json").write_text(json.dumps(trace) + "\n")
    return {"entered": traffic.entered, "left": traffic.left, "vehicle_steps": traffic.driven}
