"""Cost of scoring completions in the sandbox, compared with the library's verifier called directly.

Completions per second, in groups of eight per problem as an `rl` stage scores them, half of them right; rounds of the
two alternate, and ratios are of neighbouring rounds. Milliseconds of processor time per completion, including the
server and its children, do not depend on other load on the machine. One JSON line.

python benchmarks/verifiers.py [--rounds 5] [--completions 256]
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from learning.problems.generators import reasoning_gym
from learning.reasoning_gym import verifiers
from learning.reasoning_gym.families import entry_of
from learning.rewards.answers import exact, scored

FAMILIES = {
    "read_in_the_trainer": "gcd",
    "read_in_the_sandbox": "chain_sum",
    "evaluated_before": "countdown",
    "evaluated_lists": "spiral_matrix",
    "integrals": "simple_integration",
}
GROUP = 8


def direct(rows: list, completions: list[str]) -> list[float]:
    """As it was: in this process."""
    scores = []
    for row, completion in zip(rows, completions, strict=True):
        source, entry = entry_of(row)
        scores.append(float(source.score_answer(completion.strip(), entry)))
    return scores


def computed() -> float:
    """Seconds that this process, the server and the server's children have computed so far."""
    server = psutil.Process(verifiers.current[0].process.pid).cpu_times()
    return time.process_time() + server.user + server.system + server.children_user + server.children_system


def timed(score: Callable[[list, list[str]], list], rows: list, completions: list[str]) -> tuple[float, float]:
    """Completions per second, and milliseconds of computing for one."""
    before, begun = computed(), time.perf_counter()
    score(rows, completions)
    return len(rows) / (time.perf_counter() - begun), 1000 * (computed() - before) / len(rows)


def compared(family: str, rounds: int, count: int) -> dict[str, float]:
    """Medians of completions per second, and of their ratio in pairs of rounds."""
    problems = reasoning_gym(family=family, size=count // GROUP, split="train", seed=1)
    rows = [row for row in problems for _ in range(GROUP)]
    completions = [(row["answer"] if i % 2 else "7") for i, row in enumerate(rows)]
    assert scored(rows, completions) == direct(rows, completions)
    pairs = [(timed(direct, rows, completions), timed(scored, rows, completions)) for _ in range(rounds)]
    before, after = zip(*pairs, strict=True)
    return {
        "family": family,
        "before_per_second": round(statistics.median(rate for rate, _ in before)),
        "after_per_second": round(statistics.median(rate for rate, _ in after)),
        "ratio": round(statistics.median(b[0] / a[0] for a, b in pairs), 3),
        "before_computing_ms": round(statistics.median(spent for _, spent in before), 3),
        "after_computing_ms": round(statistics.median(spent for _, spent in after), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--completions", type=int, default=256)
    options = parser.parse_args()
    begun = time.perf_counter()
    verifiers.judge(reasoning_gym(family="countdown", size=1, split="train"), ["1"])
    report = {
        "benchmark": "verifiers",
        "rounds": options.rounds,
        "completions": options.completions,
        "first_ms": round(1000 * (time.perf_counter() - begun)),
    }
    report |= {name: compared(family, options.rounds, options.completions) for name, family in FAMILIES.items()}
    sums = reasoning_gym(family="chain_sum", size=options.completions, split="train", seed=1)
    report["answers_exact_ms"] = round(1000 * len(sums) / timed(exact, sums, ["7"] * len(sums))[0], 2)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
