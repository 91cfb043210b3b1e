"""Time and peak memory of one GRPO step compared with TRL's GRPOTrainer: same weights, prompts, batch, optimiser, loss.

    python benchmarks/grpo_step.py [--quick] [--rounds 3] [--steps 4] [--threads 2] [--workloads short long longest]

First it checks that both sides give the same gradient on the same ragged batch. Then each side runs in its own process,
the two taking turns, and one JSON line per workload gives wall and CPU seconds of a step (medians over a process's
steps after its first; of these the median, smallest and largest over the rounds) and the ratios TRL / ours. On a
machine with other load, use one thread and CPU seconds. The model has 1.8M parameters, randomly initialised; the
end-of-sequence token has no logit, so that lengths are fixed.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from grpo_sides import GENERATIONS, WORKLOADS, gradient_gap, make_model, run_ours, run_trl
from timing import spread


def child(side: str, workload: str, folder: Path, steps: int, threads: int) -> None:
    """One side in this process; prints a line of JSON."""
    if side == "gradient":
        print(json.dumps({"gap": gradient_gap(folder)}))
        return
    seconds = {"ours": run_ours, "trl": run_trl}[side](folder, WORKLOADS[workload], steps, threads)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak}))


def spawn(side: str, workload: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run one side in a process of its own."""
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--side", side, "--workload", workload, "--folder", str(folder)]
    command += ["--steps", str(options.steps), "--threads", str(options.threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(workload: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Both sides, taking turns; a ratio is that of the medians of one round."""
    rounds: dict[str, list[tuple[float, float]]] = {"ours": [], "trl": []}
    peaks: dict[str, list[float]] = {"ours": [], "trl": []}
    for _ in range(options.rounds):
        for side in rounds:
            measured = spawn(side, workload, folder, options)
            wall, cpu = zip(*measured["seconds"][1:], strict=True)
            rounds[side].append((statistics.median(wall), statistics.median(cpu)))
            peaks[side].append(measured["peak_mb"])
    work = WORKLOADS[workload]
    results: dict[str, Any] = {
        "workload": f"{work['groups']}x{GENERATIONS}, prompt {work['prompt']}, output {work['completion']}"
    }
    for place, clock in enumerate(("seconds", "cpu_seconds")):
        ours, trl = ([medians[place] for medians in rounds[side]] for side in ("ours", "trl"))
        ratios = [b / a for a, b in zip(ours, trl, strict=True)]
        results |= {f"ours_{clock}": spread(ours), f"trl_{clock}": spread(trl), f"speedup_{clock}": spread(ratios)}
    return {**results, **{f"{side}_peak_mb": round(max(peaks[side])) for side in peaks}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round of two steps of the shorter workloads: a smoke test, not a measurement",
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes per side")
    parser.add_argument("--steps", type=int, default=4, help="steps per process; the first is not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS))
    parser.add_argument("--side", choices=["ours", "trl", "gradient"], help=argparse.SUPPRESS)
    parser.add_argument("--workload", default="short", choices=list(WORKLOADS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 1, 2
    if options.side:
        child(options.side, options.workload, options.folder, options.steps, options.threads)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_model(folder)
        gap = spawn("gradient", "short", folder, options)["gap"]
        print(json.dumps({"gradient_gap": gap, "allowed": 1e-5}), flush=True)
        if gap > 1e-5:
            raise SystemExit("the two sides do not compute the same gradient; timings would mean nothing")
        for workload in options.workloads or [name for name in WORKLOADS if name != "longest" or not options.quick]:
            print(json.dumps(compare(workload, folder, options)), flush=True)


if __name__ == "__main__":
    main()
