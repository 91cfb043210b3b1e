"""Time of a second `posttrain run`, all HIT, compared with `dvc repro` when nothing has changed.

    python benchmarks/noop_vs_dvc.py [--rounds 5]

Runs the recipe of dvc.yaml first, so that neither has work to do.
"""

import argparse
import sys

from timing import alternate, report, seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    recipe = "recipes/quickstart.yaml"
    commands = {
        "posttrain_run": [sys.executable, "-m", "flows.cli", "run", recipe],
        "dvc_repro": [sys.executable, "-m", "dvc", "repro"],
    }
    first = seconds(commands["posttrain_run"])
    report("noop_vs_dvc", alternate(commands, options.rounds), recipe=recipe, first_run_seconds=round(first, 1))


if __name__ == "__main__":
    main()
