"""docs/evidence/: a page of outcomes and their plots, made from the results of `posttrain evidence`.

`python -m schemas.pages.evidence_page [FOLDER]` rewrites the page and the plots of a folder of results.
"""

import sys
from pathlib import Path

from schemas.outcome import Outcome
from schemas.package import ROOT
from schemas.pages.evidence import OUT_OF_DATE, Evidence, SeedResult, is_current, read_evidence, write_interval
from schemas.pages.evidence_plots import draw_differences, draw_seeds

FOLDER = ROOT / "docs" / "evidence"
OUTCOMES = ROOT / "recipes" / "outcomes"
PLOT_OF_ALL = "differences.svg"
COSTS, CONTROL_COSTS = ("completions", "tokens"), ("environment_steps",)
"""What is printed of the costs: of language models, and of control policies."""
RETURNS = "Returns of control policies have the units of their worlds: they are in the table and not in the plot."
INTRODUCTION = """# Outcomes

<!-- Written by `posttrain evidence` and `make docs` from the results in this folder. -->

Each row compares a method with the comparator of its paper, as the `outcome:` of its recipe in
[recipes/outcomes](../../recipes/outcomes) declares: from the same start, at the same cost, over several seeds. The
models have a few hundred thousand parameters: a verdict holds for this size and this budget.

    posttrain evidence ID              # measure (seeds that were measured are not run again), write this page
    posttrain evidence ID --verify     # measure again from an empty state: the same digits?

How it is measured, and what the interval covers: [evidence.md](../evidence.md).
"""


def read_folder(folder: Path) -> list[Evidence]:
    """Return all results in a folder, in the order of their ids."""
    return [read_evidence(file) for file in sorted(folder.glob("*.json"))] if folder.is_dir() else []


def write_pages(folder: Path, recipes: Path = OUTCOMES) -> None:
    """Write the page and the plots of a folder of results."""
    results = read_folder(folder)
    (folder / "README.md").write_text(make_evidence_page(results, recipes), encoding="utf-8")
    shares = [one for one in results if not one.outcome.compares_returns]
    (folder / PLOT_OF_ALL).write_text(draw_differences(shares), encoding="utf-8")
    for one in results:
        (folder / f"{one.id}.svg").write_text(draw_seeds(one), encoding="utf-8")


def make_evidence_page(results: list[Evidence], recipes: Path) -> str:
    """Return the page as Markdown: a table of all outcomes, and a section for each."""
    lines = [
        INTRODUCTION,
        f"![Differences with their intervals]({PLOT_OF_ALL})",
        "",
        *([RETURNS, ""] if any(one.outcome.compares_returns for one in results) else []),
        "| paper | difference, positive where the method is better | metric | mean, 95 % interval | seeds | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for one in results:
        verdict = describe_verdict(one, recipes / f"{one.id}.yaml")
        difference = one.outcome.describe_difference()
        cells = [
            f"[{one.id}](#{one.id})",
            difference,
            one.outcome.metric,
            write_interval(one),
            str(len(one.seeds)),
            verdict,
        ]
        lines.append(write_row(cells))
    known = {one.id for one in results}
    if missing := [file.stem for file in sorted(recipes.glob("*.yaml")) if file.stem not in known]:
        lines += ["", f"Declared and not measured yet: {', '.join(missing)}."]
    for one in results:
        lines += ["", *make_section(one, recipes / f"{one.id}.yaml")]
    return "\n".join(lines) + "\n"


def make_section(one: Evidence, recipe: Path) -> list[str]:
    """Return the section of one outcome."""
    outcome = one.outcome
    lines = [f"## {one.id}", "", f"Claim: {outcome.claim}.", ""]
    lines.append(f"{describe_verdict(one, recipe).capitalize()}: {write_interval(one)}, {describe_basis(one)}.")
    lines += [f"Cost differs: {outcome.unequal}."] if outcome.unequal else []
    lines += [f"[Recipe](../../recipes/outcomes/{one.id}.yaml), [data]({one.id}.json).", ""]
    lines += [f"![{one.id}: every seed]({one.id}.svg)", ""]
    start = [outcome.start] if outcome.start else []
    names = [*start, outcome.against, outcome.method]
    costs = CONTROL_COSTS if outcome.compares_returns else COSTS
    first, *others = (cost.replace("_", " ") for cost in costs)
    spent = f"{first}, {outcome.against} and {outcome.method}", *others
    lines += [write_row(["seed", *names, "difference", *spent]), "|---" * (len(names) + 2 + len(costs)) + "|"]
    for seed, gain in zip(one.seeds, one.gains, strict=True):
        values = [f"{value:.3f}" for value in (seed.start, seed.against, seed.method) if value is not None]
        spent = [write_spent(seed, what) for what in costs]
        lines.append(write_row([str(seed.seed), *values, f"{gain:+.3f}", *spent]))
    return lines


def write_row(cells: list[str]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cells)} |"


def write_spent(seed: SeedResult, what: str) -> str:
    """Return what comparator and method spent."""
    return f"{getattr(seed.against_spent, what):,}, {getattr(seed.method_spent, what):,}"


def describe_verdict(one: Evidence, recipe: Path) -> str:
    """Return the verdict in words; of a recipe that has changed since, that it is out of date."""
    if not is_current(one, recipe):
        return OUT_OF_DATE
    return f"{one.verdict} (no worse by {one.outcome.margin:g})" if one.outcome.margin else one.verdict


def describe_basis(one: Evidence) -> str:
    """Return what the interval rests on."""
    problems = f", {one.problems} problems" if one.problems > 1 else ""
    return f"{describe_metric(one.outcome)}, {len(one.seeds)} seeds{problems}"


def describe_metric(outcome: Outcome) -> str:
    """Return the metric and its direction."""
    return f"{outcome.metric} ({outcome.better} is better)" if outcome.better == "lower" else outcome.metric


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
