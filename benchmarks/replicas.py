"""Tokens per second of one and of two replicas of the torch engine, each a Ray process with one thread.

    python benchmarks/replicas.py [--rounds 5] [--requests 64] [--samples 8] [--tokens 96]

The third side is the engine in this process, also with one thread; all take turns, so that other load on the machine
affects all alike. First it checks that the three sample the same tokens. The model is that of `benchmarks/sft_step.py`;
a completion ends at its end token or at `--tokens`. One JSON line.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}  # Ray would have its workers wait for others
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"benchmark": "replicas", **measured(Path(folder), options)}))


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The three sides in turns."""
    from benchmarks.sft_step import make_model
    from flows.processes.process_tree import ProcessGroup
    from flows.steps.ray_actors import RayActors, StepHome
    from flows.steps.ray_workers import RayWorkers
    from learning.generation.replicas.replica_worker import serve
    from learning.generation.replicas.replicas import Replicas
    from learning.lookup import build
    from learning.models.policy import load_policy, set_determinism
    from lineage.layout import Layout
    from schemas.resources import Resources, Role
    from schemas.use import EngineUse

    set_determinism(0, 1)
    model, use = make_model(folder), EngineUse(use="torch")
    workers = RayWorkers(Layout(folder / "root"))
    try:
        home = StepHome(ProcessGroup.of_this_process(), folder / "log", (), frozenset())
        actors = RayActors(Resources(rollout=Role(workers=3, num_cpus=0.5)), home)
        alone, *two = actors.start("rollout", serve, use, str(model), "float32")
        one = Replicas(actors, [alone])
        sides = {"embedded": build(use, load_policy(model)), "one": one, "two": Replicas(actors, two)}
        measurements = in_turns(sides, asked(options), options)
        actors.close()
    finally:
        workers.close()
    return measurements


def asked(options: argparse.Namespace) -> list[Any]:
    """Requests with prompts of 16 to 64 tokens."""
    import random

    from learning.samples.engine_protocol import Request

    source = random.Random(0)
    prompts = [[source.randrange(8, 90) for _ in range(source.randrange(16, 65))] for _ in range(options.requests)]
    return [Request(prompt, options.samples, seed) for seed, prompt in enumerate(prompts)]


def in_turns(sides: dict[str, Any], requests: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of every side, after a round that also proves that they sample the same."""
    from learning.samples.engine_protocol import Sampling

    rates: dict[str, list[float]] = {name: [] for name in sides}
    tokens: dict[str, list[list[list[int]]]] = {}
    for number in range(options.rounds + 1):
        for name, engine in sides.items():
            began = time.perf_counter()
            made = engine.generate(requests, Sampling(1.0, options.tokens))
            seconds = time.perf_counter() - began
            tokens[name] = [[one.token_ids for one in of] for of in made]
            if number:
                rates[name].append(sum(len(ids) for of in tokens[name] for ids in of) / seconds)
    if not tokens["embedded"] == tokens["one"] == tokens["two"]:
        raise SystemExit("the sides sampled different tokens")
    medians = {name: round(statistics.median(values)) for name, values in rates.items()}
    ratios = [two / one for one, two in zip(rates["one"], rates["two"], strict=True)]
    load, cores = round(os.getloadavg()[0], 1), len(os.sched_getaffinity(0))
    return {
        "tokens_per_second": medians,
        "two_over_one": round(statistics.median(ratios), 2),
        "two_over_one_by_round": [round(ratio, 2) for ratio in ratios],
        "completions": len(requests) * options.samples,
        "cores": cores,
        "load_average": load,
    }


if __name__ == "__main__":
    main()
