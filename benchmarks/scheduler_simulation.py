"""Modes of rollout and training on a simulated cluster: utilisation, throughput, staleness, and the next bottleneck.

    python benchmarks/scheduler_simulation.py [--gpus 1000] [--iterations 15] [--seeds 2] [--modes ...]
                              [--costs assumed|measured|FILE] [--halved synchronous asynchronous]

Discrete events over the product's own rollout functions (`benchmarks/simulated_modes.py`), with costs by name:
`benchmarks/simulation_costs.json` gives the source of every number, `assumed` for large GPUs, `measured` where a "GPU"
is one core of a CPU; a FILE is in the format that `benchmarks/measure_costs.py` prints. Where GPUs either generate or
train, the share that generates is the fastest of 0.5, 0.6, … 0.9. For the modes of `--halved` every cost is halved in
turn, the GPUs are redistributed, and the gain is reported: the largest gain is the bottleneck. One JSON line.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from simulated_cluster import Costs, Work
from simulated_modes import COLOCATED, MODES, WARM_UP, Found
from simulation_inputs import Cluster, costs_of, told_of

SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
CAPPED = 0.5
"""Length that completions are cut at, of the longest, to see what the longest cost."""


def summary(runs: list[Found], size: Cluster) -> dict[str, Any]:
    """Means over seeds; spread is the standard deviation of the throughput over seeds."""
    rates = [sum(one.tokens) / sum(one.seconds) / size.gpus for one in runs]
    total: dict[int, int] = {}
    for one in runs:
        for age, tokens in one.staleness.items():
            total[age] = total.get(age, 0) + tokens
    every = sum(total.values())
    return {
        "tokens_per_second_per_gpu": round(statistics.mean(rates), 3),
        "spread": round(statistics.pstdev(rates), 3),
        "iteration_seconds": round(statistics.mean(s for one in runs for s in one.seconds), 2),
        "generating": round(statistics.mean(one.generating for one in runs), 4),
        "filled": round(statistics.mean(one.filled for one in runs), 4),
        "training": round(statistics.mean(one.training for one in runs), 4),
        "trained_length": round(statistics.mean(n for one in runs for n in one.lengths), 1),
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
    simulated = MODES[mode](cluster, costs, work, iterations, 0)
    return sum(tokens / length for tokens, length in zip(simulated.tokens, simulated.lengths, strict=True)) / sum(
        simulated.seconds
    )


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


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Every mode at its best share of GPUs, and what halving each cost would give."""
    costs, work, cluster = costs_of(told_of(options.costs), options.gpus)
    short, modes = 2 * WARM_UP, {}
    for mode in options.modes:
        size = best_share(mode, cluster, costs, work, short)
        runs = [MODES[mode](size, costs, work, options.iterations, seed) for seed in range(options.seeds)]
        summary_of_mode = summary(runs, size) | ({} if mode in COLOCATED else {"generating_share": size.share})
        modes[mode] = summary_of_mode | (
            {"halved": bottlenecks(mode, size, costs, work, short)} if mode in options.halved else {}
        )
        print(mode, modes[mode], file=sys.stderr, flush=True)
    first = modes.get("synchronous")
    for summary_of_mode in modes.values():
        if first:
            summary_of_mode["ratio"] = round(
                summary_of_mode["tokens_per_second_per_gpu"] / first["tokens_per_second_per_gpu"], 2
            )
    return {
        "benchmark": "scheduler_simulation",
        "gpus": options.gpus,
        "iterations": options.iterations,
        "seeds": options.seeds,
        "costs": options.costs,
        "modes": modes,
    }


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
