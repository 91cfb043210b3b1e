"""Start or resume a run in the terminal, and update its projections (DVC, MLflow, report)."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.champions.promotion import promote_after
from flows.execution.alerts import Alerts
from flows.execution.audit_entries import log_report_written, read_verified_plan
from flows.execution.ledger import change_budget, describe_spending
from flows.execution.progress import TerminalReporter
from flows.execution.results import ScoredRow, read_notices, read_scores
from flows.execution.run_log import append_event
from flows.execution.states import EXIT_CANCELLED, StepState
from flows.history.exporting import send_run
from flows.planning.recipe_plan import compare_repeated
from flows.runs.launch import ExecutorName, Outcome, run_plan
from flows.runs.lookup import find_run
from flows.runs.stand_in_server import serve_stand_ins
from lineage.catalogue.index import query_index
from lineage.catalogue.row_index import read_new_tables
from lineage.layout import Layout
from lineage.reports.report import write_report
from lineage.tracking.record import add_report, project_run
from schemas.errors import advise_on_file_error
from schemas.plan import Plan
from schemas.stages.union import traits_of

MODELS = ("policy", "adapter", "reward_model", "value_model")
"""Types of artifacts whose folders are printed at the end of a run."""


def start_run(plan: Plan, layout: Layout, executor: ExecutorName, console: Console, run: str | None = None) -> Outcome:
    """Run a plan, show its progress, update projections, print the results; return how it ended."""
    report: list[Path] = []
    with serve_stand_ins(plan), TerminalReporter(plan, console) as reporter:
        outcome = run_plan(
            plan,
            layout,
            executor=executor,
            reporter=reporter,
            run=run,
            project=lambda ended, alerts: report.append(update_projections(ended, plan, layout, console, alerts)),
        )
    if outcome.exit_code == EXIT_CANCELLED:
        print_line(console, "", f"stopped; finished artifacts are kept; continue with: posttrain resume {outcome.run}")
        return outcome
    for table in make_result_tables(outcome):
        console.print(table)
    for state in outcome.states.values():
        for notice in read_notices(state.manifest) if state.state == "done" else ():
            print_line(console, "", f"{state.step}: {notice}")
        if state.state == "failed":
            print_line(console, "failed", f"{state.step}: {state.reason}; its log: posttrain logs {state.step}")
        if state.failed:
            print_line(console, "gate failed", f"{state.step}: {state.failed}")
        if state.rejected:
            print_line(console, "gate rejected", f"{state.step}: {state.rejected}")
        if state.waits:
            how = f"posttrain approve {outcome.run} {state.step} --approve --reason TEXT (or --reject), then resume"
            print_line(console, "waiting for approval", f"{state.step}: {state.waits}; {how}")
    if outcome.exit_code not in (0, 2):
        print_line(console, "", f"finished artifacts are kept; continue with: posttrain resume {outcome.run}")
    for line in describe_spending(plan, layout, outcome.run):
        print_line(console, "", line)
    for step, comparison in compare_repeated(plan.steps, layout).items():
        print_line(console, "", f"repeated: {step} produced {comparison}")
    for line in describe_models(outcome, layout):
        print_line(console, "", line)
    print_line(console, "", f"run {outcome.run}, report {os.path.relpath(report[0])}")
    return outcome


def describe_models(outcome: Outcome, layout: Layout) -> Iterable[str]:
    """Yield a line with the folder of every model that a finished step of the run has trained or merged."""
    for name, state in outcome.states.items():
        if state.manifest is None or traits_of(state.manifest.kind).defines_model:
            continue
        for output, record in state.manifest.outputs.items():
            if record.type in MODELS:
                folder = layout.artifact(state.manifest.kind, state.manifest.key) / "outputs" / output
                yield f"{record.type.replace('_', ' ')} of {name}: {os.path.relpath(folder)}"


def print_line(console: Console, what: str, text: str) -> None:
    """Print one line, without wrapping or markup."""
    console.print(Text.assemble((f"{what} " if what else "", "red"), text), soft_wrap=True, highlight=False)


def update_projections(outcome: Outcome, plan: Plan, layout: Layout, console: Console, alerts: Alerts) -> Path:
    """Update DVC's files, MLflow and the report to what the run left; return the report's path.

    These are projections of manifests: if one cannot be written, a warning is printed and the run keeps its result.
    """
    from lineage.exchange.dvc_files import project_dvc  # imports pyarrow

    manifests = {name: s.manifest for name, s in outcome.states.items() if s.manifest is not None}
    _update_projection("DVC", lambda: project_dvc(layout, plan, succeeded=outcome.exit_code == 0), console)
    _update_projection("The index of lineage", lambda: query_index(layout, read_new_tables), console)
    record_in_mlflow(outcome, plan, layout, console)
    if outcome.exit_code != EXIT_CANCELLED and (verdict := promote_after(plan, outcome.states, layout)):
        append_event(
            layout.run(outcome.run) / "events.jsonl", {"type": "promotion", "time": time.time(), **asdict(verdict)}
        )
        print_line(console, "", verdict.text)
        if not verdict.moved:
            alerts.refuse_promotion(verdict.text)
    report = write_report(plan, _make_events(outcome), manifests, layout, outcome.run)
    log_report_written(layout, outcome.run)
    _update_projection("MLflow", lambda: add_report(layout, outcome.run, report), console)
    _update_projection("OpenLineage", lambda: send_run(layout, outcome.run), console)
    return report


def record_in_mlflow(outcome: Outcome, plan: Plan, layout: Layout, console: Console) -> None:
    """Record an ended run in MLflow if its recipe asks for it; print a warning if that fails."""
    if "mlflow" in plan.track:
        events = _make_events(outcome)
        _update_projection("MLflow", lambda: project_run(layout, outcome.run, plan, events), console)


def _make_events(outcome: Outcome) -> dict[str, dict[str, Any]]:
    return {name: dict(_as_done(state, outcome.run).as_event()) for name, state in outcome.states.items()}


def _as_done(state: StepState, run: str) -> StepState:
    """Return a step that this run made before it was stopped as done, so that its curves are exported once."""
    if state.state != "cached" or state.manifest is None or state.manifest.run != run:
        return state
    return replace(state, state="done", reason="", seconds=state.manifest.seconds)


def _update_projection(what: str, projection: Callable[[], object], console: Console) -> None:
    try:
        projection()
    except Exception as error:  # a projection can be rebuilt; the artifacts must not suffer from it
        first = (str(error) or type(error).__name__).splitlines()[0]  # of SQLAlchemy: the statement and a link follow
        advice = advise_on_file_error(error) or "the results of the run are kept"
        print_line(console, f"{what} was not updated:", f"{first}; {advice}")


def make_result_tables(outcome: Outcome) -> Iterable[Table]:
    """Yield a table per evaluation of a run: model by problem family, each number with its interval."""
    for name, state in outcome.states.items():
        rows = read_scores(state.manifest)
        if not rows:
            continue
        table = Table(title=f"{name}: held-out problems", title_justify="left")
        families = list(dict.fromkeys(row["family"] for row in rows))
        for column in ("model", "metric", *families):
            table.add_column(column)
        for model, metric in dict.fromkeys((row["model"], row["metric"]) for row in rows):
            cells = {r["family"]: r for r in rows if (r["model"], r["metric"]) == (model, metric)}
            table.add_row(Text(model), metric, *(_format_cell(cells.get(family)) for family in families))
        yield table


def _format_cell(row: ScoredRow | None) -> str:
    return f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" if row else ""


def resume_run(
    run: str | None, layout: Layout, executor: ExecutorName, console: Console, budget: Sequence[str] = ()
) -> Outcome:
    """Resume a run as planned: finished steps are found, a killed one continues from its checkpoint.

    `budget` changes what the run may cost, as `core_seconds=600`.
    """
    name = find_run(run, layout)
    return start_run(change_budget(read_verified_plan(layout, name), budget), layout, executor, console, name)
