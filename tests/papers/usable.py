"""Runs `--profile own` of each row on a real checkpoint and a foreign data set, and records what ran.

`python -m tests.papers.usable --model path:… [ID …]` writes `docs/own_model.json`, from which docs/papers.md counts.
The problems are those of `tests.papers.own_data`; every training stage makes one step, so the accuracies say that the
evaluation ran, not that the method helps. A checkpoint of this size solves none of some rows' problems: its samples are
accepted all the same, by the `settings` in the record.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from lineage.layout import Layout
from schemas.package import ROOT
from schemas.recipe.load import load_recipe
from schemas.source.extend import read_recipe
from tests.papers.mutation import is_control
from tests.papers.own_data import RECIPES, UNTAUGHT, list_overrides, list_small_sizes, write_files

RECORD = ROOT / "docs" / "own_model.json"
LENGTH = 12
"""Tokens of a completion, except in the rows below."""
LENGTHS = {"cos-mo-s": 64, "verirl": 64, "coderl-plus": 64, "drive": 64}
PROBLEMS = 1
"""Problems of an iteration; each has as many completions as in the recipe."""


def list_rows() -> list[str]:
    """Return the rows whose recipe has the profile `own` and trains a language model."""
    return [path.stem for path in sorted(RECIPES.glob("*.yaml")) if has_own(path) and not is_control(path.stem)]


def has_own(path: Path) -> bool:
    """Return whether a recipe has the profile `own`."""
    profiles = read_recipe(path).get("profiles")
    return profiles is not None and profiles.get("own") is not None


def run_row(row: str, model: str, work: Path, limit: float) -> dict[str, object]:
    """Run a row in a process of its own; return what the record says of it, with `failed` if it did not end well."""
    write_files(work)
    overrides = list_overrides(row, work, model)
    path = RECIPES / f"{row}.yaml"
    recipe = load_recipe(path, profile="own", overrides=overrides)
    variables = read_recipe(path, "own").get("vars")
    if variables is not None and "length" in variables.value:
        overrides.append(f"vars.length={LENGTHS.get(row, LENGTH)}")
    accepted = UNTAUGHT.get(row, [])
    settings = [*overrides, *list_small_sizes(recipe, PROBLEMS), *accepted]
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "posttrain", "run", str(path), "--profile", "own", "--executor", "inprocess"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POSTTRAIN_DIR": str(work)}
    began = time.monotonic()
    try:
        ended = subprocess.run(
            [*command, *words], cwd=work, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it did not end within {limit:g} seconds"}
    seconds = round(time.monotonic() - began, 1)
    if ended.returncode not in (0, 2):
        return {"failed": (ended.stdout + ended.stderr)[-2000:], "seconds": seconds}
    noted = {"settings": accepted} if accepted else {}
    return {"seconds": seconds, "steps": len(recipe.stages), **noted, "measured": read_accuracies(Layout(work))}


def read_accuracies(layout: Layout) -> dict[str, float]:
    """Return the accuracy of every model in the reports of a run."""
    measured: dict[str, float] = {}
    for file in sorted(layout.root.rglob("*.json")):
        with contextlib.suppress(ValueError, OSError):
            record = json.loads(file.read_text(encoding="utf-8"))
            metrics = record.get("metrics") if isinstance(record, dict) else None
            numbers = metrics.items() if isinstance(metrics, dict) else ()
            measured |= {n: round(v, 4) for n, v in numbers if re.fullmatch(r"accuracy\.\w+", n)}
    return dict(sorted(measured.items()))


def main() -> int:
    """Print a line per row and write the record after each; return 1 if a row fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.papers.usable", description=__doc__)
    parser.add_argument("rows", nargs="*", help="ids of rows; all by default")
    parser.add_argument("--model", required=True, help="the checkpoint: path:… of a folder or a GGUF file")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one row (300)")
    options = parser.parse_args()
    failed = 0
    for row in options.rows or list_rows():
        with tempfile.TemporaryDirectory(prefix="own-") as folder:
            entry = run_row(row, options.model, Path(folder).resolve(), options.limit)
        print(row, json.dumps(entry)[:3000], flush=True)
        failed += "failed" in entry
        if "failed" not in entry:
            write_record(row, options.model, entry)
    return 1 if failed else 0


def write_record(row: str, model: str, entry: dict[str, object]) -> None:
    """Put a row into the record, with the model's file, the version of posttrain and the time."""
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")
    record[row] = {"model": Path(model.partition(":")[2]).name, "version": version("posttrain"), "date": now, **entry}
    RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
