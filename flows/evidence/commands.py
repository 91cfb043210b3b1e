"""What `posttrain evidence` does: measure an outcome and write it, or measure it again and compare."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from flows.evidence.measure import find_outcome_recipe, list_changed_digits, measure
from flows.runs.launch import ExecutorName
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.pages.evidence import Evidence, read_evidence, write_evidence
from schemas.pages.evidence_page import write_pages


def measure_outcome(
    name: str, seeds: Sequence[int], output: Path, executor: ExecutorName, console: Console
) -> Evidence:
    """Measure an outcome, write its results and the pages of the folder, and print the verdict."""
    recipe = find_outcome_recipe(name)
    evidence = measure(recipe, seeds, Layout.find(), executor, console)
    write_evidence(evidence, output / f"{recipe.stem}.json")
    write_pages(output)
    print_verdict(evidence, console)
    return evidence


def verify_outcome(name: str, output: Path, executor: ExecutorName, console: Console) -> bool:
    """Return whether an outcome measured again from an empty state has the digits of its results; print both."""
    recipe = find_outcome_recipe(name)
    file = output / f"{recipe.stem}.json"
    if not file.is_file():
        raise PlanError(f"{file} does not exist; measure it first: posttrain evidence {name}")
    before = read_evidence(file)
    with tempfile.TemporaryDirectory() as folder:
        now = measure(recipe, [one.seed for one in before.seeds], Layout(Path(folder)), executor, console)
    changes = list_changed_digits(before, now)
    for change in changes:
        console.print(f"{recipe.stem}: {change}", highlight=False, soft_wrap=True)
    if before.digest != now.digest:
        console.print(f"{recipe.stem}: the recipe has changed since it was measured", highlight=False)
    if not changes:
        console.print(f"{recipe.stem}: the same digits, {len(now.seeds)} seeds from an empty state", highlight=False)
    print_verdict(now, console)
    return not changes


def print_verdict(evidence: Evidence, console: Console) -> None:
    """Print the difference, its interval and the verdict in one line."""
    outcome = evidence.outcome
    interval = f"{evidence.value:+.4f} [{evidence.low:+.4f}, {evidence.high:+.4f}]"
    what = f"{outcome.describe_difference()}, {outcome.metric}, {len(evidence.seeds)} seeds"
    console.print(f"{evidence.id}: {what}: {interval}: {evidence.verdict}", highlight=False, soft_wrap=True)
