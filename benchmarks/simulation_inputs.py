"""Inputs of a simulation: a cluster, costs by name, and a workload with randomly drawn lengths and waits."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from simulated_cluster import Costs, Work

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Cluster:
    """GPUs, how many make a replica, sequences at once in each, and the share of GPUs that generates."""

    gpus: int
    gpus_per_replica: int
    slots: int
    share: float = 0.75

    @property
    def apart(self) -> tuple[int, int]:
        """Replicas, and GPUs that train, where they do not take turns."""
        replicas = max(1, round(self.gpus * self.share / self.gpus_per_replica))
        return replicas, self.gpus - replicas * self.gpus_per_replica


def heavy(median: float, sigma: float, most: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Lognormal, cut at `most`; sigma 0 gives the median."""

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        return np.minimum(np.maximum(rng.lognormal(math.log(median), sigma, count), 1e-9), most)

    return draw


def tokens_of(draw: Callable[[np.random.Generator, int], np.ndarray]) -> Callable[..., np.ndarray]:
    """Whole numbers of tokens, at least one."""
    return lambda rng, count: np.maximum(np.round(draw(rng, count)), 1).astype(int)


def pareto(least: float, shape: float, cut: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Pareto, from `least` on, cut at `cut` times that."""
    return lambda rng, count: least * np.minimum((1 - rng.random(count)) ** (-1 / shape), cut)


def nothing(rng: np.random.Generator, count: int) -> np.ndarray:
    """No time at all."""
    return np.zeros(count)


def told_of(name: str) -> dict[str, Any]:
    """A set of costs by its name in `simulation_costs.json`, or from a file. Raises SystemExit where there is none."""
    known = json.loads((HERE / "simulation_costs.json").read_text())
    if name in known:
        return known[name]
    if not Path(name).is_file():
        raise SystemExit(f"--costs {name}: neither a file nor one of {', '.join(known)}")
    record = json.loads(Path(name).read_text())
    if missing := {"cluster", "costs", "work"} - set(record):
        raise SystemExit(f"--costs {name}: lacks {', '.join(sorted(missing))}; measure_costs.py prints what is needed")
    return record


def work_of(given: dict[str, Any]) -> Work:
    """Work of a set of costs: lognormal lengths or tokens that end, lognormal waits or those of `async_rollout.py`."""
    longest = given["longest"]
    if "stops" in given:
        lengths = lambda rng, count: np.minimum(rng.geometric(given["stops"], count), longest)  # noqa: E731
    else:
        lengths = tokens_of(heavy(given["median_length"], given["length_sigma"], longest))
    sizes = (given["groups"], given["size"], given["prompt"], lengths)
    if "latency_shape" not in given:
        return Work(*sizes, heavy(given["median_latency"], given["latency_sigma"], given["latest"]), longest)
    waits = pareto(given["latency_from"], given["latency_shape"], given["latency_cut"])
    return Work(*sizes, waits, longest, lambda lengths: 0.5 + lengths / longest)


def costs_of(inputs: dict[str, Any], size: int) -> tuple[Costs, Work, Cluster]:
    """Costs, work and cluster of a set of costs."""
    costs, work, shape = ({k: v["value"] for k, v in inputs[part].items()} for part in ("costs", "work", "cluster"))
    return Costs(**costs), work_of(work), Cluster(size, shape["gpus_per_replica"], shape["slots"])
