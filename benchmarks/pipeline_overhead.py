"""Overhead of a complete pipeline: a run with everything enabled compared with the sum of its tasks' own time.

    python benchmarks/pipeline_overhead.py [RECIPE] [--profile tiny]

In a fresh state folder: `posttrain run` (Prefect, Ray, MLflow, DVC, report), then the wall time of every task's `run`
from the manifests. For concurrent steps the longest chain counts, which no pipeline can beat.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from timing import ROOT, report, seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", nargs="?", default="recipes/quickstart.yaml")
    parser.add_argument("--profile")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from lineage.layout import Layout
    from lineage.records import read_records

    profile = ["--profile", options.profile] if options.profile else []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["POSTTRAIN_ROOT"] = folder
        recipe = str((ROOT / options.recipe).resolve())
        whole = seconds([sys.executable, "-m", "flows.cli", "run", recipe, *profile])
        records = read_records(Layout(Path(folder)))
    bare = sum(record["seconds"] for record in records)
    chain = max(longest(records).values())
    figures = {"run": [round(whole, 2)], "bare_tasks": [round(bare, 2)], "longest_chain": [round(chain, 2)]}
    report("pipeline_overhead", figures, recipe=options.recipe, steps=len(records), cores=os.cpu_count())


def longest(records: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds until each step could have ended on a machine without limits; records are ordered by their start."""
    ends: dict[str, float] = {}
    for record in records:
        above = [ends[i["key"]] for i in record["inputs"] if i.get("key") in ends]
        ends[record["key"]] = record["seconds"] + max(above, default=0.0)
    return ends


if __name__ == "__main__":
    main()
