"""Results of five algorithms from one cold start with equal numbers of sampled tokens, over five seeds.

    python benchmarks/learning_table.py [--set KEY=VALUE ...] [--keep FOLDER]

Runs recipes/learning.yaml in a separate state folder, then writes docs/learning.md (table) and docs/learning.png
(curves), and prints one JSON line. Intervals of an algorithm are Student's t over its seeds; the cold start's is that
of the evaluation. `--set` changes the recipe (for example fewer seeds for a quick test); then nothing is written to
docs.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scipy.stats import t as student
from timing import ROOT

RECIPE = "recipes/learning.yaml"
NAMES = {
    "grpo": "GRPO",
    "rloo": "RLOO",
    "reinforce_plus_plus": "REINFORCE++",
    "ppo": "PPO with a critic",
    "dapo": "DAPO",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--keep", type=Path, help="state folder to use, and to leave there")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        changes = [word for change in options.set for word in ("--set", change)]
        run = [sys.executable, "-m", "flows.cli", "run", str(ROOT / RECIPE), *changes]
        subprocess.run(run, check=True, cwd=ROOT, env={**os.environ, "POSTTRAIN_ROOT": str(folder)})
        table = results(folder)
        if not options.set:
            (ROOT / "docs" / "learning.md").write_text(page(table))
            draw(table, ROOT / "docs" / "learning.png")
    print(json.dumps({"benchmark": "learning_table", "cold_start": table["cold_start"], **table["algorithms"]}))


def results(folder: Path) -> dict[str, Any]:
    """Accuracy and curves of every algorithm from what the run left."""
    from lineage.layout import Layout
    from lineage.records import read_records

    records = read_records(Layout(folder))
    table = next(r for r in records if r["kind"] == "evaluate")["details"]["table"]
    accuracy = {row["model"]: row for row in table if row["family"] == "all" and row["metric"] == "accuracy"}
    algorithms: dict[str, Any] = {}
    curves: dict[str, list[list[dict[str, float]]]] = {}
    for record in (r for r in records if r["kind"] == "rl"):
        name = re.search(r"algorithm=(\w+)", record["step"])[1]
        algorithm = algorithms.setdefault(name, {"accuracies": [], "tokens": []})
        algorithm["accuracies"].append(round(accuracy[record["step"]]["value"], 4))
        lines = [json.loads(line) for line in (Path(record["folder"]) / "metrics.jsonl").read_text().splitlines()]
        lines = whole_windows(lines)
        algorithm["tokens"].append(int(record["metrics"]["tokens"]))
        curves.setdefault(name, []).append(lines)
    for algorithm in algorithms.values():
        algorithm["mean"], algorithm["low"], algorithm["high"] = interval(algorithm["accuracies"])
    cold = {key: round(accuracy["cold_start"][key], 4) for key in ("value", "low", "high", "n")}
    return {"cold_start": cold, "algorithms": algorithms, "curves": curves}


def whole_windows(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    """The points of a curve without a last one that is the mean of fewer iterations than the others: it is noisier."""
    if len(lines) < 3:
        return lines
    every = lines[1]["step"] - lines[0]["step"]
    return lines if lines[-1]["step"] - lines[-2]["step"] == every else lines[:-1]


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of Student's t; a single value has no interval."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return round(mean, 4), round(mean, 4), round(mean, 4)
    half = float(student.ppf(0.975, n - 1)) * statistics.stdev(values) / n**0.5
    return round(mean, 4), round(mean - half, 4), round(mean + half, 4)


def page(table: dict[str, Any]) -> str:
    """docs/learning.md."""
    cold = table["cold_start"]
    lines = [
        "# Five algorithms on one cold start",
        "",
        "Written by `python benchmarks/learning_table.py`, which runs [its recipe](../recipes/learning.yaml): sums",
        "of reasoning-gym, a transformer of 0.17 million parameters, five seeds, as many sampled tokens for each.",
        f"Accuracy is that of four samples at temperature 1 on {cold['n']} held-out problems; the interval of an",
        "algorithm is Student's t over its seeds (95 %), that of the cold start a bootstrap over problems.",
        "",
        "| algorithm | accuracy | 95 % interval | seeds | tokens sampled |",
        "|---|---|---|---|---|",
        f"| cold start | {cold['value']:.3f} | [{cold['low']:.3f}, {cold['high']:.3f}] | | |",
    ]
    for name, title in NAMES.items():
        if name not in table["algorithms"]:
            continue
        of = table["algorithms"][name]
        seeds = " ".join(f"{value:.3f}" for value in of["accuracies"])
        lines.append(
            f"| {title} | {of['mean']:.3f} | [{of['low']:.3f}, {of['high']:.3f}] | {seeds} | "
            f"{statistics.fmean(of['tokens']):,.0f} |"
        )
    return "\n".join([*lines, "", "![Reward against sampled tokens](learning.png)", ""])


def draw(table: dict[str, Any], file: Path) -> None:
    """Reward of the samples against the tokens sampled: mean over seeds, and the range of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, title in NAMES.items():
        runs = table["curves"].get(name, [])
        if not runs:
            continue
        last = min(run[-1]["sampled_tokens"] for run in runs)
        at = np.linspace(max(run[0]["sampled_tokens"] for run in runs), last, 60)
        values = np.array([np.interp(at, [p["sampled_tokens"] for p in r], [p["reward"] for p in r]) for r in runs])
        (line,) = axes.plot(at, values.mean(0), label=title)
        axes.fill_between(at, values.min(0), values.max(0), alpha=0.15, color=line.get_color(), linewidth=0)
    axes.set_xlabel("tokens sampled")
    axes.set_ylabel("reward of the samples")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main()
