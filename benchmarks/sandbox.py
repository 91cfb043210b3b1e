"""Overhead of the sandbox: an empty program in it compared with a bare interpreter; one JSON line.

Milliseconds of wall time, which other load on the machine increases, and of processor time of the child, which it does
not.

python benchmarks/sandbox.py [--rounds 100] [--workers 2]
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from learning.sandbox.run import available, run


def milliseconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - begun)


def computing(work: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def bare() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)


def spread(values: list[float]) -> dict[str, float]:
    tenths = statistics.quantiles(values, n=20)
    return {"median": round(statistics.median(values), 2), "p95": round(tenths[-1], 2)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    first = milliseconds(available)
    times: dict[str, list[float]] = {"sandbox": [], "bare": []}
    for _ in range(options.rounds):
        times["sandbox"].append(milliseconds(lambda: run("pass")))
        times["bare"].append(milliseconds(bare))
    spent = {"sandbox": [computing(lambda: run("pass")) for _ in range(options.rounds)]}
    spent["bare"] = [computing(bare) for _ in range(options.rounds)]
    with ThreadPoolExecutor(options.workers) as pool:
        whole = milliseconds(lambda: list(pool.map(run, ["pass"] * options.rounds)))
    report = {
        "benchmark": "sandbox",
        "rounds": options.rounds,
        "first_probe_ms": round(first, 1),
        "sandbox_ms": spread(times["sandbox"]),
        "bare_interpreter_ms": spread(times["bare"]),
        "sandbox_computing_ms": spread(spent["sandbox"]),
        "bare_interpreter_computing_ms": spread(spent["bare"]),
        "workers": options.workers,
        "programs_per_second": round(1000 * options.rounds / whole, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
