"""The simulator compared with real runs of `benchmarks/async_rollout.py`, with costs measured on one core.

    python benchmarks/async_rollout.py > measured.json
    python benchmarks/simulated_async_rollout.py --against measured.json [--costs async_rollout] [--seeds 200]

One generator and one trainer, with that benchmark's rollout functions, groups, iterations and distribution of waiting
times; nothing is fitted to its seconds. One JSON line: seconds of every mode and the ratio of its rate to the
synchronous loop's, with the standard deviation between single seeds; with `--against` also the measurement and the
error of the prediction.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from simulated_cluster import Costs, Work
from simulated_modes import Found, asynchronous, overlapped, synchronous
from simulation_inputs import Cluster, costs_of, told_of

MODES: dict[str, Callable[..., Found]] = {
    "synchronous": synchronous,
    "periodic": overlapped,
    "partial": partial(asynchronous, max_staleness=2, ahead=1, ends=True),
    "asynchronous": partial(asynchronous, max_staleness=8, ahead=6, ends=True),
}
"""As in `async_rollout.py`."""


def predicted(costs: Costs, work: Work, slots: int, iterations: int, seeds: int) -> dict[str, dict[str, float]]:
    """Seconds of each mode, and ratios to the synchronous loop of the same seed, means over seeds."""
    one, two = Cluster(1, 1, slots), Cluster(2, 1, slots, share=0.5)
    runs = {
        name: [mode(one if name == "synchronous" else two, costs, work, iterations, seed) for seed in range(seeds)]
        for name, mode in MODES.items()
    }
    predictions = {}
    for name, runs_of_mode in runs.items():
        pairs = zip(runs["synchronous"], runs_of_mode, strict=True)
        ratios = [first.total / run.total for first, run in pairs]
        predictions[name] = {
            "seconds": round(statistics.fmean(run.total for run in runs_of_mode), 2),
            "seconds_deviation": round(statistics.pstdev(run.total for run in runs_of_mode), 2),
            "ratio": round(statistics.fmean(ratios), 3),
            "ratio_deviation": round(statistics.pstdev(ratios), 3),
        }
    return predictions


def compared(predictions: dict[str, dict[str, float]], against: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Predictions beside the line that `async_rollout.py` printed; `off`: predicted over measured, less one."""
    comparison = {}
    for name, mode in predictions.items():
        real = against["modes"][name]
        seconds = statistics.fmean(real["seconds"])
        measured = {"measured_seconds": round(seconds, 2), "measured_ratio": real["times_synchronous"]}
        off = {
            "seconds_off": round(mode["seconds"] / seconds - 1, 3),
            "ratio_off": round(mode["ratio"] / real["times_synchronous"] - 1, 3),
        }
        comparison[name] = mode | measured | off
    return comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the line that async_rollout.py printed")
    parser.add_argument("--costs", default="async_rollout", help="a set of simulation_costs.json, or a file")
    parser.add_argument("--seeds", type=int, default=200)
    options = parser.parse_args()
    inputs = told_of(options.costs)
    against = json.loads(options.against.read_text()) if options.against else None
    if against:
        inputs["work"]["latency_from"] = {"value": against["latency_pareto"]["from_seconds"]}
    costs, work, cluster = costs_of(inputs, 2)
    modes = predicted(costs, work, cluster.slots, against["iterations"] if against else 30, options.seeds)
    line = {"benchmark": "simulated_async_rollout", "costs": options.costs, "seeds": options.seeds}
    print(json.dumps(line | {"modes": compared(modes, against) if against else modes}))


if __name__ == "__main__":
    main()
