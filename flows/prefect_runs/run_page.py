"""Prefect's pages about a run, as markdown and rows of tables.

`flows.prefect_runs.artifacts` uploads them.
"""

from collections.abc import Mapping
from typing import TypedDict

from flows.execution.results import is_number, read_scores, read_yields
from flows.execution.states import (
    EXIT_CANCELLED,
    StepState,
    compute_exit_code,
    describe_gate_ends,
    describe_states,
)
from flows.planning.explain import Verdict
from flows.planning.gate_power import describe_condition
from lineage.reports.formatting import format_duration, format_number
from schemas.plan import Plan

MARKS = {"HIT": "✓", "MISS": "→"}


def make_plan_page(plan: Plan, run: str, verdicts: Mapping[str, Verdict], took: Mapping[str, float]) -> str:
    """Return a page with the plan: HIT or MISS of each step, why, and the seconds it last took."""
    hits = sum(verdict == "HIT" for verdict, _ in verdicts.values())
    lines = [
        f"## Plan of {plan.recipe}",
        f"Run `{run}` of `{plan.file}`" + (f", profile `{plan.profile}`" if plan.profile else ""),
        f"**{hits} of {len(plan.steps)} steps are cached.** {describe_expected_time(verdicts, took)}",
        "| step | kind | | why | reads | cores | last took |\n|---|---|---|---|---|---|---|",
    ]
    for step in plan.steps:
        verdict, why = verdicts[step.name]
        why = "; ".join(filter(None, (why, describe_condition(step, plan))))
        last = format_duration(took[step.name]) if step.name in took else "–"
        cells = (step.name, step.kind, f"{MARKS[verdict]} {verdict}", why, step.reads, f"{step.resources.all_cpus:g}")
        lines[-1] += "\n" + _format_row(*cells, last)
    return "\n\n".join(lines)


def describe_expected_time(verdicts: Mapping[str, Verdict], took: Mapping[str, float]) -> str:
    """Return how long the missing steps took when they last ran, and for which steps that is unknown."""
    missing = [name for name, (verdict, _) in verdicts.items() if verdict == "MISS"]
    if not missing:
        return "Nothing to run."
    seconds = [took[name] for name in missing if name in took]
    unknown = [name for name in missing if name not in took]
    text = (
        f"The missing steps took {format_duration(sum(seconds))} when they last ran"
        if seconds
        else "They have never run"
    )
    if seconds and unknown:
        return f"{text}; not known: {', '.join(unknown)}."
    return f"{text}." if seconds else f"{text}: their cost is unknown."


class ResultRow(TypedDict):
    """One number of an evaluation, as Prefect's table shows it."""

    evaluation: str
    model: str
    metric: str
    family: str
    value: float
    interval: str


def list_result_rows(states: Mapping[str, StepState]) -> list[ResultRow]:
    """Return one row per number of an evaluation, with its interval."""
    return [
        ResultRow(
            evaluation=name,
            model=row["model"],
            metric=row["metric"],
            family=row["family"],
            value=round(row["value"], 4),
            interval=f"[{row['low']:.3f}, {row['high']:.3f}]",
        )
        for name, state in states.items()
        for row in read_scores(state.manifest)
    ]


def make_result_page(
    run: str,
    states: Mapping[str, StepState],
    again: Mapping[str, str],
    links: Mapping[str, str],
    promotion: str | None = None,
) -> str:
    """Return a page with the end of a run: gates and promotion first, then every step with its main metrics, links."""
    lines = [f"## Results of run {run}", f"**{describe_outcome(states)}**"]
    verdicts = [
        f"- Gate of {name}, {gate.verdict}: {gate.text or gate.name}" for name, s in states.items() for gate in s.gates
    ]
    if promotion:
        verdicts.append(f"- Promotion: {promotion}")
    if verdicts:
        lines.append("\n".join(verdicts))
    if again:
        lines.append("\n".join(f"- Repeated: {name} produced {comparison}" for name, comparison in again.items()))
    lines.append("| step | state | seconds | numbers | why |\n|---|---|---|---|---|")
    for name, state in states.items():
        why = "; ".join(part for part in (state.reason, state.gate_text) if part)
        seconds = f"{state.seconds:.1f}" if state.seconds else ""
        lines[-1] += "\n" + _format_row(name, state.state, seconds, _format_metrics(state), why)
    if rows := list_result_rows(states):
        lines.append("### Held-out problems\n\n| model | metric | family | value | interval |\n|---|---|---|---|---|")
        for row in rows:
            lines[-1] += "\n" + _format_row(
                row["model"], row["metric"], row["family"], format_number(row["value"]), row["interval"]
            )
    lines += make_yield_tables(states)
    if links:
        lines.append("### More\n\n" + "\n".join(f"- {what}: {where}" for what, where in links.items()))
    return "\n\n".join(lines)


def make_yield_tables(states: Mapping[str, StepState]) -> list[str]:
    """Return a table per stage of what became of its samples, family by family."""
    tables = []
    for name, state in states.items():
        table = read_yields(state.manifest)
        if state.manifest is None or not table:
            continue
        heads = [column.replace("_", " ") for column in table[0]]
        rows = [_format_row(*(format_number(value) for value in line.values())) for line in table]
        tables.append("\n".join([f"### Yield of {name}\n", _format_row(*heads), "|" + "---|" * len(heads), *rows]))
        if capped := state.manifest.details.get("capped"):
            tables.append(f"**{capped}**")
    return tables


def describe_outcome(states: Mapping[str, StepState]) -> str:
    """Return the end of a run as a sentence."""
    text = describe_states(states.values())
    code = compute_exit_code(dict(states))
    if code == EXIT_CANCELLED:
        return f"Stopped: {text}. Finished artifacts are kept; continue with Retry or `posttrain resume`."
    ends = {
        0: "All is well",
        1: "A step failed",
        2: describe_gate_ends(s.gate_text for s in states.values()).capitalize(),
    }
    return f"{ends[code]}: {text}." + ("" if code == 0 else " Finished artifacts are kept.")


def _format_metrics(state: StepState) -> str:
    """Return the first metrics of a step; those of an evaluation have the names of their models."""
    metrics = state.manifest.metrics if state.manifest else {}
    bare = {row["metric"] for row in read_scores(state.manifest)}
    numbers = [
        f"{name} {format_number(value)}" for name, value in metrics.items() if is_number(value) and name not in bare
    ]
    return ", ".join(numbers[:4])


def _format_row(*cells: str) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
