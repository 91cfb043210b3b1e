"""What Prefect's pages say about a run, as markdown and rows of tables.

`flows.prefect_runs.artifacts` puts them there.
"""

from collections.abc import Mapping
from typing import Any

from flows.execution.results import read_scores, read_yields
from flows.execution.states import EXIT_CANCELLED, StepState, compute_exit_code
from flows.planning.explain import Verdict
from flows.planning.gate_power import describe_condition
from lineage.reports.report import format_duration, format_number
from schemas.plan import Plan

MARKS = {"HIT": "✓", "MISS": "→"}


def make_plan_page(plan: Plan, run: str, verdicts: Mapping[str, Verdict], took: Mapping[str, float]) -> str:
    """What a run is going to do: HIT or MISS of each step, why, and how long it took when it last ran (seconds)."""
    hits = sum(verdict == "HIT" for verdict, _ in verdicts.values())
    lines = [
        f"## Plan of {plan.recipe}",
        f"Run `{run}` of `{plan.file}`" + (f", profile `{plan.profile}`" if plan.profile else ""),
        f"**{hits} of {len(plan.steps)} steps are there.** {describe_expected_time(verdicts, took)}",
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
    """What the steps that will run cost when they last ran, and for which of them that is not known."""
    missing = [name for name, (verdict, _) in verdicts.items() if verdict == "MISS"]
    if not missing:
        return "Nothing is to be done."
    known = [took[name] for name in missing if name in took]
    unknown = [name for name in missing if name not in took]
    said = f"Those to be done took {format_duration(sum(known))} when they last ran" if known else "They have never run"
    if known and unknown:
        return f"{said}; not known: {', '.join(unknown)}."
    return f"{said}." if known else f"{said}: nothing is known of their cost."


def list_result_rows(states: Mapping[str, StepState]) -> list[dict[str, Any]]:
    """One row per number of an evaluation, with its interval."""
    rows: list[dict[str, Any]] = []
    for name, state in states.items():
        for row in read_scores(state.manifest):
            interval = f"[{row['low']:.3f}, {row['high']:.3f}]"
            known = {"evaluation": name, "model": row["model"], "metric": row["metric"], "family": row["family"]}
            rows.append(known | {"value": round(row["value"], 4), "interval": interval})
    return rows


def make_result_page(
    run: str, states: Mapping[str, StepState], again: Mapping[str, str], links: Mapping[str, str]
) -> str:
    """How a run ended: every step, its gates, its main numbers, and where more is told."""
    lines = [f"## Results of run {run}", f"**{describe_outcome(states)}**"]
    if again:
        lines.append("\n".join(f"- Done again: {name} came to {said}" for name, said in again.items()))
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
    """What became of everything that stages tried to write, family by family."""
    found = []
    for name, state in states.items():
        table = read_yields(state.manifest)
        if state.manifest is None or not table:
            continue
        heads = [column.replace("_", " ") for column in table[0]]
        rows = [_format_row(*(format_number(value) for value in line.values())) for line in table]
        found.append("\n".join([f"### Yield of {name}\n", _format_row(*heads), "|" + "---|" * len(heads), *rows]))
        if capped := state.manifest.details.get("capped"):
            found.append(f"**{capped}**")
    return found


def describe_outcome(states: Mapping[str, StepState]) -> str:
    """The end of a run in a sentence."""
    counts: dict[str, int] = {}
    for state in states.values():
        counts[state.state] = counts.get(state.state, 0) + 1
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    code = compute_exit_code(dict(states))
    if code == EXIT_CANCELLED:
        return f"Stopped: {said}. What is finished stays; Retry, or `posttrain resume`, goes on."
    ends = {0: "All is well", 1: "A step failed", 2: "A gate failed"}
    return f"{ends[code]}: {said}." + ("" if code == 0 else " What is finished stays.")


def _format_metrics(state: StepState) -> str:
    metrics = state.manifest.metrics if state.manifest else {}
    plain = [(k, v) for k, v in metrics.items() if isinstance(v, int | float) and not isinstance(v, bool)]
    return ", ".join(f"{name} {format_number(value)}" for name, value in plain[:4])


def _format_row(*cells: str) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
