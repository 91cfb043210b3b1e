"""What one does with runs: start, go on, look, and bring the projections (DVC, MLflow, report) up to date."""

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.gates.promotion import promote_after
from flows.launch import ExecutorName, Outcome, run_plan
from flows.planning.selection import repeated
from flows.running.audited import planned, report_written
from flows.running.budget import spending_lines, with_budget
from flows.running.runlog import append, events, read_plan, runs
from flows.running.states import EXIT_CANCELLED, FINISHED, STYLES, StepState
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.manifest import Manifest
from schemas.plan import Plan
from schemas.suggestions import suggest


def start(plan: Plan, layout: Layout, executor: ExecutorName, console: Console, run: str | None = None) -> int:
    """Run a plan, show how it goes, project what it made, print the results; returns the exit code."""
    from flows.running.progress import TerminalReporter

    report: list[Path] = []
    with TerminalReporter(plan, console) as reporter:
        outcome = run_plan(
            plan, layout, executor=executor, reporter=reporter, run=run,
            project=lambda ended: report.append(project(ended, plan, layout, console)),
        )  # fmt: skip
    if outcome.exit_code == EXIT_CANCELLED:
        _say(console, "", f"stopped; finished artifacts stay; go on with: posttrain resume {outcome.run}")
        return outcome.exit_code
    for table in result_tables(outcome):
        console.print(table)
    for state in outcome.states.values():
        if state.state == "failed":
            _say(console, "failed", f"{state.step}: {state.reason}; its log: posttrain logs {state.step}")
        if state.gate:
            _say(console, "gate failed", f"{state.step}: {state.gate}")
        if state.waits:
            how = f"posttrain approve {outcome.run} {state.step} --approve --reason TEXT (or --reject), then resume"
            _say(console, "waiting for approval", f"{state.step}: {state.waits}; {how}")
    if outcome.exit_code not in (0, 2):
        _say(console, "", f"finished artifacts stay; go on with: posttrain resume {outcome.run}")
    for line in spending_lines(plan, layout, outcome.run):
        _say(console, "", line)
    for step, said in repeated(plan.steps, layout).items():
        _say(console, "", f"done again: {step} came to {said}")
    _say(console, "", f"run {outcome.run}, report {os.path.relpath(report[0])}")
    return outcome.exit_code


def _say(console: Console, what: str, text: str) -> None:
    """A line of its own, whatever it contains and however long it is."""
    console.print(Text.assemble((f"{what} " if what else "", "red"), text), soft_wrap=True, highlight=False)


def project(outcome: Outcome, plan: Plan, layout: Layout, console: Console) -> Path:
    """Bring DVC's files, MLflow and the report up to what the run left; returns the report's path.

    These are projections of manifests: where one cannot be written, the run stands, and a warning says so.
    """
    from flows.history.exporting import send_run
    from lineage.catalogue.index import query_index
    from lineage.catalogue.row_index import read_new_tables
    from lineage.exchange.dvc_files import project_dvc
    from lineage.reports.report import write_report
    from lineage.tracking.record import add_report, project_run

    states = {name: _as_made(state, outcome.run).event() for name, state in outcome.states.items()}
    manifests = {name: s.manifest for name, s in outcome.states.items() if s.manifest is not None}
    _projected("DVC", lambda: project_dvc(layout, plan), console)
    _projected("The index of lineage", lambda: query_index(layout, read_new_tables), console)
    _projected("MLflow", lambda: project_run(layout, outcome.run, plan, states), console)
    if outcome.exit_code != EXIT_CANCELLED and (verdict := promote_after(plan, outcome.states, layout)):
        append(layout.run(outcome.run) / "events.jsonl", {"type": "promotion", "time": time.time(), **asdict(verdict)})
        _say(console, "", verdict.text)
    report = write_report(plan, states, manifests, layout, outcome.run)
    report_written(layout, outcome.run)
    _projected("MLflow", lambda: add_report(layout, outcome.run, report), console)
    _projected("OpenLineage", lambda: send_run(layout, outcome.run), console)
    return report


def _as_made(state: StepState, run: str) -> StepState:
    """A step that this very run made before it was stopped is done by it, and not found: its curves are told once."""
    if state.state != "cached" or state.manifest is None or state.manifest.run != run:
        return state
    return replace(state, state="done", reason="", seconds=state.manifest.seconds)


def _projected(what: str, projection: Callable[[], object], console: Console) -> None:
    try:
        projection()
    except Exception as error:  # a projection can be rebuilt; the artifacts must not suffer from it
        _say(console, f"{what} was not brought up to date:", str(error))


def result_tables(outcome: Outcome) -> Iterable[Table]:
    """The tables of all evaluations of a run: model by problem family, each number with its interval."""
    for name, state in outcome.states.items():
        rows: list[dict[str, Any]] = state.manifest.details.get("table", []) if state.manifest else []
        if state.manifest is None or state.manifest.kind != "evaluate" or not rows:
            continue
        table = Table(title=f"{name}: held-out problems", title_justify="left")
        families = list(dict.fromkeys(row["family"] for row in rows))
        for column in ("model", "metric", *families):
            table.add_column(column)
        for model, metric in dict.fromkeys((row["model"], row["metric"]) for row in rows):
            cells = {r["family"]: r for r in rows if (r["model"], r["metric"]) == (model, metric)}
            table.add_row(Text(model), metric, *(_cell(cells.get(family)) for family in families))
        yield table


def _cell(row: dict[str, Any] | None) -> str:
    return f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" if row else ""


def chosen_run(run: str | None, layout: Layout) -> str:
    """A run by its name or the start of it, or as `latest~1`; default: the latest. Raises PlanError."""
    names = runs(layout)
    if not names:
        raise PlanError(f"no runs in {layout.state}; start one: posttrain run recipes/quickstart.yaml")
    if back := re.fullmatch(r"latest(?:~(\d+))?", run or "latest"):
        found = names[int(back[1] or 0) :]
    else:
        found = [name for name in names if name.startswith(run or "")]
    if not found:
        raise PlanError(f"no run `{run}`; {suggest(run or '', names, 'runs')}")
    return found[0]


def resume_run(
    run: str | None, layout: Layout, executor: ExecutorName, console: Console, budget: Sequence[str] = ()
) -> int:
    """Go on with a run as it was planned: finished steps are there, a killed one continues from its checkpoint.

    `budget` changes what the run may cost, as `core_seconds=600`.
    """
    name = chosen_run(run, layout)
    return start(with_budget(planned(layout, name), budget), layout, executor, console, name)


def status_table(run: str | None, layout: Layout) -> Table:
    """State, time and key of every step of a run."""
    name = chosen_run(run, layout)
    plan = read_plan(layout, name)
    last: dict[str, dict[str, Any]] = {}
    state = "planned"
    for event in events(layout, name):
        if event["type"] == "step":
            last[event["step"]] = event
        if event["type"] == "run":
            under_way = "under way, or killed (then: posttrain resume)"
            ended = event.get("exit_code")
            stopped = f"stopped (go on with: posttrain resume {name})"
            state = under_way if ended is None else stopped if ended == EXIT_CANCELLED else f"exit code {ended}"
    table = Table(title=f"Run {name} of {plan.recipe}: {state}", title_justify="left")
    for column in ("step", "state", "seconds", "key", "why"):
        table.add_column(column, overflow="fold")
    for step in plan.steps:
        event = last.get(step.name, {"state": "queued"})
        seconds = f"{event['seconds']:.1f}" if event.get("seconds") else ""
        why = "; ".join(part for part in (event.get("reason", ""), event.get("gates", "")) if part)
        mark = Text(event["state"], STYLES.get(event["state"], ""))
        table.add_row(Text(step.name), mark, seconds, step.key[:16], Text(why))
    return table


def step_log(step: str, run: str | None, layout: Layout) -> str:
    """What a step wrote, finished or not; raises PlanError when it has not started."""
    plan = read_plan(layout, chosen_run(run, layout))
    names = [s.name for s in plan.steps]
    if step not in names:
        raise PlanError(f"no step `{step}` in that run; {suggest(step, names, 'steps')}")
    found = plan.step(step)
    for folder in (layout.artifact(found.kind, found.key), layout.work(found.key)):
        if (folder / "step.log").is_file():
            return (folder / "step.log").read_text(errors="replace")
    raise PlanError(f"{step} has not started in that run")


def rebuild_report(run: str | None, layout: Layout) -> Path:
    """Write the report of a run again from its plan, its events and the manifests."""
    from lineage.reports.report import write_report

    name = chosen_run(run, layout)
    plan, store = read_plan(layout, name), Store(layout)
    states = {e["step"]: e for e in events(layout, name) if e["type"] == "step"}
    manifests: dict[str, Manifest] = {}
    for step in plan.steps:
        found = store.find(step.kind, step.key)
        if found is not None and states.get(step.name, {}).get("state") in FINISHED:
            manifests[step.name] = found
    report = write_report(plan, states, manifests, layout, name)
    report_written(layout, name)
    return report
