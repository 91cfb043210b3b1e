"""Wall time of commands, and one JSON line per result."""

import json
import statistics
import subprocess
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def now() -> tuple[float, float]:
    """Wall seconds and CPU seconds of this process; other load on the machine affects the latter less."""
    return time.perf_counter(), time.process_time()


def between(moments: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Wall and CPU seconds from each moment to the next."""
    return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(moments)]


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest value."""
    return {name: round(f(values), 2) for name, f in (("median", statistics.median), ("min", min), ("max", max))}


def seconds(command: list[str], cwd: Path = ROOT) -> float:
    """Wall time of one run of a command; its failure ends the benchmark with what it said."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    taken = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return taken


def alternate(commands: dict[str, list[str]], rounds: int, cwd: Path = ROOT) -> dict[str, list[float]]:
    """Times of several commands, taken in turns so that a busy machine hurts all alike; the first round is dropped."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            measured = seconds(command, cwd)
            if number:
                taken[name].append(round(measured, 3))
    return taken


def report(name: str, taken: dict[str, list[float]], **more: object) -> None:
    """Print one JSON line with medians and all measurements."""
    medians = {key: statistics.median(values) for key, values in taken.items()}
    print(json.dumps({"benchmark": name, "median_seconds": medians, "all": taken, **more}))
