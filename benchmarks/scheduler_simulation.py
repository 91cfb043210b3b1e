"""Modes of rollout and training on a simulated cluster: utilisation, throughput, staleness, and the next bottleneck.

    python benchmarks/scheduler_simulation.py [--gpus 1000] [--iterations 15] [--seeds 2] [--modes ...]
                              [--costs assumed|measured|FILE] [--halved synchronous asynchronous]

Discrete events over the product's own drives (`benchmarks/simulated_cluster.py`), with costs by name:
`benchmarks/simulation_costs.json` says of every number where it comes from, `assumed` for large GPUs, `measured` where
a "GPU" is one core of a CPU; or those of a file, as `benchmarks/measure_costs.py` prints them. Where GPUs either
generate or train, the share that generates is the fastest of 0.5, 0.6, … 0.9. For the modes of `--halved` every cost
is halved in turn, the GPUs shared out anew, and the gain told: the largest is the bottleneck. One JSON line.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from simulated_cluster import Clock, Completion, Costs, Pool, SimulatedStream, Work

from learning.asynchrony.streaming_drives import one_step_off, periodic, streamed

HERE = Path(__file__).resolve().parent
WARM_UP = 4
"""First iterations, which are not counted: pipelines fill."""


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


@dataclass
class Found:
    """What a run tells."""

    seconds: list[float]
    """Of every iteration."""
    tokens: list[int]
    """Trained on in every iteration."""
    staleness: dict[int, int]
    """Tokens by how many versions they were old when they were trained on."""
    generating: float
    """Share of the time of replicas in which they decoded."""
    filled: float
    """Tokens generated over those of replicas that are always full."""
    training: float
    """Share of the time of the GPUs that train in which they do."""
    lengths: list[float]
    """Mean length of what was trained on, by iteration."""
    total: float
    """Seconds of the whole run, with its first iterations, beginning and end."""


class Loop:
    """The trainer's side of a run."""

    def __init__(self, cluster: Cluster, costs: Costs, work: Work, seed: int, *, colocated: bool = False):
        self.cluster, self.costs, self.work, self.clock = cluster, costs, work, Clock()
        replicas, trainers = cluster.apart
        if colocated:
            replicas, trainers = cluster.gpus // cluster.gpus_per_replica, cluster.gpus
        self.trainers = trainers
        self.pool = Pool(self.clock, costs, work, replicas, cluster.slots)
        self.stream = SimulatedStream(self.pool, seed)
        self.version, self.trained = 0, 0.0
        self.seconds: list[float] = []
        self.tokens: list[int] = []
        self.lengths: list[float] = []
        self.staleness: dict[int, int] = {}
        self.start = (0.0, 0.0, 0.0, 0.0)
        self.clock.sleep(costs.start)

    def compute(self, completions: list[Completion]) -> None:
        """The gradient of some completions."""
        tokens = sum(one.length for one in completions) + len(completions) / self.work.size * self.work.prompt
        spent = tokens * self.costs.train_token / self.trainers
        self.trained += spent
        self.clock.sleep(spent)

    def publish(self, *, recompute: bool) -> None:
        """The optimiser's step, and new weights for all replicas."""
        self.trained += self.costs.train_step
        self.clock.sleep(self.costs.train_step)
        self.version += 1
        if not self.stream.interrupt:
            self.pool.drain()
        self.clock.sleep(self.costs.sync)
        self.pool.load(self.version, recompute=recompute)

    def note(self, completions: list[Completion], step: int, began: float) -> None:
        """Write down an iteration."""
        if step < WARM_UP:
            self.start = (self.clock.now, *self.pool.told(), self.trained)
            return
        self.seconds.append(self.clock.now - began)
        self.tokens.append(sum(one.length for one in completions))
        self.lengths.append(self.tokens[-1] / max(len(completions), 1))
        for one in completions:
            for version, tokens in one.spans:
                self.staleness[step - version] = self.staleness.get(step - version, 0) + tokens

    def found(self) -> Found:
        """Everything after the warm-up."""
        began, busy, tokens, trained = self.start
        passed = self.clock.now - began
        told_busy, told_tokens = self.pool.told()
        count, slots = len(self.pool.replicas), self.cluster.slots
        each = self.costs.decode_each + self.costs.decode_context * self.pool.mean_context()
        full = slots / (self.costs.decode_base + each * slots)
        return Found(
            self.seconds, self.tokens, self.staleness, (told_busy - busy) / passed / count,
            (told_tokens - tokens) / passed / count / full, (self.trained - trained) / passed, self.lengths,
            self.clock.now,
        )  # fmt: skip


def _iterate(loop: Loop, iterations: int, one: Callable[[int], list[Completion]], *, recompute: bool = False) -> Found:
    for step in range(iterations):
        began = loop.clock.now
        completions = one(step)
        loop.publish(recompute=recompute)
        loop.note(completions, step, began)
    return loop.found()


def synchronous(cluster: Cluster, costs: Costs, work: Work, iterations: int, seed: int) -> Found:
    """All GPUs generate, then all train."""
    loop = Loop(cluster, costs, work, seed, colocated=True)

    def one(step: int) -> list[Completion]:
        loop.stream.open(None, None, interrupt=False, steps_per_update=None)
        loop.stream.ask(step, [])
        loop.stream.launch()
        completions = loop.stream.take(step, step)
        loop.clock.sleep(costs.swap)
        loop.compute(completions)
        loop.clock.sleep(costs.swap)
        return completions

    return _iterate(loop, iterations, one)


def off_by_one(cluster: Cluster, costs: Costs, work: Work, iterations: int, seed: int) -> Found:
    """The next batch is generated while this one is trained on: the drive `one_step_off`."""
    loop = Loop(cluster, costs, work, seed)

    def one(step: int) -> list[Completion]:
        completions = one_step_off([], None, loop.stream, lambda plan: [], None, step, 0, iterations + 1)
        loop.compute(completions)
        return completions

    return _iterate(loop, iterations, one)


def overlapped(cluster: Cluster, costs: Costs, work: Work, iterations: int, seed: int) -> Found:
    """Groups are trained on as they arrive, by the weights that sampled them: the drive `periodic`."""
    loop = Loop(cluster, costs, work, seed)

    def one(step: int) -> list[Completion]:
        return periodic([], None, loop.stream, None, loop.compute, step, order="arrived")

    return _iterate(loop, iterations, one)


def partial_rollouts(
    cluster: Cluster, costs: Costs, work: Work, iterations: int, seed: int, overprovision: float = 1.5
) -> Found:
    """More run than are needed, what has not ended goes on in the next iteration: the rule of `overprovisioned`."""
    loop = Loop(cluster, costs, work, seed, colocated=True)
    target = work.groups * work.size
    launch, asked, left = math.ceil(target * overprovision - 1e-9), 0, []

    def one(step: int) -> list[Completion]:
        nonlocal asked, left
        stream = loop.stream
        while sum(one.finish == "suspended" for group in stream.groups for one in group.members) < launch:
            stream.ask(asked, [])
            asked += 1
        new = [group for group in stream.groups if not group.sent]
        for group in new:
            group.sent = True
        before = loop.pool.count
        loop.pool.submit(left + [one for group in new for one in group.members])
        loop.clock.until(lambda: loop.pool.count - before >= target)
        left = loop.pool.suspend()
        ready = [g for g in stream.groups if all(m.finish != "suspended" for m in g.members)]
        loop.clock.until(lambda: all(group.judged is not None for group in ready))
        completions = stream._handed_out(ready)
        loop.clock.sleep(costs.swap)
        loop.compute(completions)
        loop.clock.sleep(costs.swap)
        return completions

    loop.stream.interrupt = loop.pool.counted = True
    return _iterate(loop, iterations, one)


def asynchronous(
    cluster: Cluster, costs: Costs, work: Work, iterations: int, seed: int, max_staleness: int = 4,
    ahead: int | None = None, ends: bool = False,
) -> Found:  # fmt: skip
    """Generation never waits for the trainer but for admission: the drive `streamed`.

    `ends`: nothing is asked for beyond the last iteration.
    """
    loop = Loop(cluster, costs, work, seed)
    options = {"max_staleness": max_staleness, "ahead": ahead}

    def one(step: int) -> list[Completion]:
        most = iterations if ends else iterations + max_staleness + 1
        completions = streamed([], None, loop.stream, lambda plan: [], None, step, 0, most, **options)
        loop.compute(completions)
        return completions

    return _iterate(loop, iterations, one, recompute=True)


MODES: dict[str, Callable[..., Found]] = {
    "synchronous": synchronous,
    "periodic": overlapped,
    "one_step_off": off_by_one,
    "partial": partial_rollouts,
    "asynchronous": asynchronous,
}
COLOCATED = ("synchronous", "partial")
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
CAPPED = 0.5
"""Length that completions are cut at, of the longest, to see what the longest cost."""


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


def summary(found: list[Found], size: Cluster) -> dict[str, Any]:
    """Means over seeds; spread is the standard deviation of the throughput over seeds."""
    rates = [sum(one.tokens) / sum(one.seconds) / size.gpus for one in found]
    total: dict[int, int] = {}
    for one in found:
        for age, tokens in one.staleness.items():
            total[age] = total.get(age, 0) + tokens
    every = sum(total.values())
    return {
        "tokens_per_second_per_gpu": round(statistics.mean(rates), 3),
        "spread": round(statistics.pstdev(rates), 3),
        "iteration_seconds": round(statistics.mean(s for one in found for s in one.seconds), 2),
        "generating": round(statistics.mean(one.generating for one in found), 4),
        "filled": round(statistics.mean(one.filled for one in found), 4),
        "training": round(statistics.mean(one.training for one in found), 4),
        "trained_length": round(statistics.mean(n for one in found for n in one.lengths), 1),
        "staleness": {str(age): round(tokens / every, 4) for age, tokens in sorted(total.items())},
    }


def best_share(
    mode: str, cluster: Cluster, costs: Costs, work: Work, iterations: int, shares: Sequence[float] = SHARES
) -> Cluster:
    """The cluster with the share of generating GPUs that is fastest for a mode."""
    if mode in COLOCATED:
        return cluster
    tried = [replace(cluster, share=share) for share in shares]
    return max((one for one in tried if one.apart[1] > 0), key=lambda one: rate(mode, one, costs, work, iterations))


def rate(mode: str, cluster: Cluster, costs: Costs, work: Work, iterations: int) -> float:
    """Completions a second in one run."""
    found = MODES[mode](cluster, costs, work, iterations, 0)
    return sum(tokens / length for tokens, length in zip(found.tokens, found.lengths, strict=True)) / sum(found.seconds)


HALVED = {
    "decoding": ("decode_base", "decode_each", "decode_context"),
    "prefill": ("prefill_token",),
    "training": ("train_token", "train_step"),
    "weight sync": ("sync", "load"),
    "taking turns": ("swap",),
}


def bottlenecks(mode: str, cluster: Cluster, costs: Costs, work: Work, iterations: int) -> dict[str, float]:
    """How much faster a mode becomes when one cost is halved; where GPUs are apart they are shared out anew."""
    near = [round(cluster.share + more, 2) for more in (-0.1, 0.0, 0.1) if 0 < cluster.share + more < 1]

    def best(costs: Costs, work: Work) -> float:
        shares = [cluster.share] if mode in COLOCATED else near
        tried = [replace(cluster, share=share) for share in shares]
        return max(rate(mode, one, costs, work, iterations) for one in tried)

    before = best(costs, work)
    gains = {
        name: best(replace(costs, **{key: getattr(costs, key) / 2 for key in keys}), work) / before
        for name, keys in HALVED.items()
    }
    shorter = replace(work, lengths=lambda rng, count: np.minimum(work.lengths(rng, count), CAPPED * work.longest))
    gains["longest completions"] = best(costs, shorter) / before
    quicker = replace(work, latencies=lambda rng, count: work.latencies(rng, count) / 2)
    gains["environment"] = best(costs, quicker) / before
    return {name: round(gain, 3) for name, gain in gains.items()}


def told_of(name: str) -> dict[str, Any]:
    """A set of costs by its name in `simulation_costs.json`, or from a file. Raises SystemExit where there is none."""
    known = json.loads((HERE / "simulation_costs.json").read_text())
    if name in known:
        return known[name]
    if not Path(name).is_file():
        raise SystemExit(f"--costs {name}: neither a file nor one of {', '.join(known)}")
    told = json.loads(Path(name).read_text())
    if missing := {"cluster", "costs", "work"} - set(told):
        raise SystemExit(f"--costs {name}: lacks {', '.join(sorted(missing))}; measure_costs.py prints what is needed")
    return told


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


def costs_of(told: dict[str, Any], size: int) -> tuple[Costs, Work, Cluster]:
    """Costs, work and cluster of a set of costs."""
    costs, work, shape = ({k: v["value"] for k, v in told[part].items()} for part in ("costs", "work", "cluster"))
    return Costs(**costs), work_of(work), Cluster(size, shape["gpus_per_replica"], shape["slots"])


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Every mode at its best share of GPUs, and what halving each cost would give."""
    costs, work, cluster = costs_of(told_of(options.costs), options.gpus)
    short, modes = 2 * WARM_UP, {}
    for mode in options.modes:
        size = best_share(mode, cluster, costs, work, short)
        runs = [MODES[mode](size, costs, work, options.iterations, seed) for seed in range(options.seeds)]
        told = summary(runs, size) | ({} if mode in COLOCATED else {"generating_share": size.share})
        modes[mode] = told | ({"halved": bottlenecks(mode, size, costs, work, short)} if mode in options.halved else {})
        print(mode, modes[mode], file=sys.stderr, flush=True)
    first = modes.get("synchronous")
    for told in modes.values():
        if first:
            told["ratio"] = round(told["tokens_per_second_per_gpu"] / first["tokens_per_second_per_gpu"], 2)
    return {"benchmark": "scheduler_simulation", "gpus": options.gpus, "iterations": options.iterations,
            "seeds": options.seeds, "costs": options.costs, "modes": modes}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--costs", default="assumed", help="assumed, measured, or a file of measure_costs.py")
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--halved", nargs="*", choices=list(MODES), default=["synchronous", "asynchronous"])
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()
