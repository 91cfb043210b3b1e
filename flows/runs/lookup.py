"""Find a run, and show the state of its steps, their logs and its report."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from flows.execution.audit_entries import log_report_written
from flows.execution.events import StepEvent
from flows.execution.run_log import list_runs, read_events, read_plan, read_step_events
from flows.execution.states import EXIT_CANCELLED, FINISHED, STYLES, describe_gate_ends
from flows.runs.current_states import read_current_states
from flows.runs.plain_adapters import make_plain
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.reports.report import write_report
from lineage.sources.resolve import complete_adapter
from schemas.errors import PlanError
from schemas.manifest import Manifest
from schemas.suggestions import suggest

OUTCOMES = {0: "ok", 1: "a step failed", EXIT_CANCELLED: "stopped"}
"""Exit codes of runs in words; 2 is for gates, which tell more."""


def find_run(run: str | None, layout: Layout) -> str:
    """Return a run by its name, the start of it, or as `latest~1`; default: the latest. Raise PlanError."""
    names = list_runs(layout)
    if not names:
        raise PlanError(f"no runs in {layout.state}; start one: posttrain run RECIPE.yaml")
    if back := re.fullmatch(r"latest(?:~(\d+))?", run or "latest"):
        matching = names[int(back[1] or 0) :]
    else:
        matching = [name for name in names if name.startswith(run or "")]
    if not matching:
        raise PlanError(f"no run `{run}`; {suggest(run or '', names, 'runs')}")
    return matching[0]


def find_step(
    words: list[str], profile: str | None, overrides: list[str], layout: Layout
) -> tuple[str, str, str | None, list[str]]:
    """Return recipe, step, profile and overrides of a question; without a recipe, those of the latest run.

    Raise PlanError if there is no run, its recipe is gone, or there are too many words.
    """
    if len(words) == 2:
        return words[0], words[1], profile, overrides
    if len(words) > 2:
        raise PlanError(f"expected a recipe and a step, got {len(words)} words: {' '.join(words)}")
    plan = read_plan(layout, find_run(None, layout))
    file = next((f for f in (Path(plan.file), layout.root / plan.file) if f.is_file()), None)
    if file is None:
        raise PlanError(
            f"the recipe of the latest run, {plan.file}, does not exist; name a recipe: posttrain why RECIPE STEP"
        )
    return str(file), words[0], profile or plan.profile, overrides or list(plan.overrides)


@dataclass(frozen=True)
class RunRecord:
    """One run: its name, recipe and outcome in words; `exit_code` is None for a run that has not ended."""

    run: str
    recipe: str
    profile: str | None
    steps: int
    done: int
    outcome: str
    exit_code: int | None


def list_run_records(layout: Layout) -> list[RunRecord]:
    """Return all runs, the latest first."""
    return [_read_record(layout, name) for name in list_runs(layout)]


def _read_record(layout: Layout, name: str) -> RunRecord:
    plan = read_plan(layout, name)
    steps = read_current_states(layout, name, plan)
    codes = [event.get("exit_code") for event in read_events(layout, name) if event["type"] == "run"]
    code = codes[-1] if codes else None
    finished = sum(event["state"] in FINISHED for event in steps.values())
    outcome = OUTCOMES.get(code, f"exit code {code}") if code is not None else "active, or killed"
    if code == 2:
        outcome = describe_gate_ends(event.get("gates", "") for event in steps.values())
    return RunRecord(name, plan.recipe, plan.profile, len(plan.steps), finished, outcome, code)


def make_runs_table(records: Sequence[RunRecord]) -> Table:
    """Return a table with one row per run."""
    table = Table("run", "recipe", "profile", "steps", "outcome")
    for record in records:
        done = f"{record.done} of {record.steps}"
        table.add_row(Text(record.run), Text(record.recipe), Text(record.profile or ""), done, record.outcome)
    return table


def list_step_records(run: str | None, layout: Layout) -> list[dict[str, object]]:
    """Return name, kind, key, state, seconds, reason and gates of every step of a run."""
    name = find_run(run, layout)
    plan = read_plan(layout, name)
    steps = read_current_states(layout, name, plan)
    records: list[dict[str, object]] = []
    for step in plan.steps:
        event = steps.get(step.name) or StepEvent(type="step", step=step.name, state="queued")
        records.append(
            {
                "step": step.name,
                "kind": step.kind,
                "key": step.key,
                "state": event["state"],
                "seconds": event.get("seconds"),
                "reason": event.get("reason", ""),
                "gates": event.get("gates", ""),
            }
        )
    return records


def find_output(step: str, run: str | None, layout: Layout) -> Path:
    """Return the folder of an output, by `STEP` (the first) or `STEP.OUTPUT`; an adapter's loads with transformers.

    Raise PlanError if there is none.
    """
    plan = read_plan(layout, find_run(run, layout))
    names = [planned.name for planned in plan.steps]
    name, output = (step, "") if step in names else (step.rpartition(".")[0], step.rpartition(".")[2])
    if name not in names:
        raise PlanError(f"no step `{step}` in that run; {suggest(step, names, 'steps')}")
    planned = plan.step(name)
    manifest = Store(layout).find(planned.kind, planned.key)
    if manifest is None:
        raise PlanError(f"{name} has not finished; its state: posttrain status")
    chosen = output or next(iter(manifest.outputs))
    if chosen not in manifest.outputs:
        raise PlanError(f"{name} has no output `{chosen}`; {suggest(chosen, manifest.outputs, 'outputs')}")
    return make_plain(complete_adapter(layout.artifact(planned.kind, planned.key) / "outputs" / chosen, layout), layout)


def make_status_table(run: str | None, layout: Layout) -> Table:
    """Return a table with state, time and key of every step of a run."""
    name = find_run(run, layout)
    plan = read_plan(layout, name)
    steps = read_current_states(layout, name, plan)
    state = "planned"
    for event in read_events(layout, name):
        if event["type"] == "run":
            under_way = "active, or killed (then: posttrain resume)"
            ended = event.get("exit_code")
            stopped = f"stopped (continue with: posttrain resume {name})"
            state = under_way if ended is None else stopped if ended == EXIT_CANCELLED else f"exit code {ended}"
    table = Table(title=f"Run {name} of {plan.recipe}: {state}", title_justify="left")
    for column in ("step", "state", "seconds", "key", "why"):
        table.add_column(column, overflow="fold")
    for step in plan.steps:
        event = steps.get(step.name) or StepEvent(type="step", step=step.name, state="queued")
        seconds = f"{duration:.1f}" if (duration := event.get("seconds")) else ""
        why = "; ".join(part for part in (event.get("reason", ""), event.get("gates", "")) if part)
        mark = Text(event["state"], STYLES.get(event["state"], ""))
        table.add_row(Text(step.name), mark, seconds, step.key[:16], Text(why))
    return table


def read_step_log(step: str, run: str | None, layout: Layout) -> str:
    """Return the log of a step, finished or not. Raise PlanError if it has not started."""
    plan = read_plan(layout, find_run(run, layout))
    names = [s.name for s in plan.steps]
    if step not in names:
        raise PlanError(f"no step `{step}` in that run; {suggest(step, names, 'steps')}")
    planned = plan.step(step)
    for folder in (layout.artifact(planned.kind, planned.key), layout.work(planned.key)):
        if (folder / "step.log").is_file():
            return (folder / "step.log").read_text(errors="replace")
    raise PlanError(f"{step} has not started in that run")


def rebuild_report(run: str | None, layout: Layout) -> Path:
    """Rewrite the report of a run from its plan, its events and the manifests; return its path."""
    name = find_run(run, layout)
    plan, store = read_plan(layout, name), Store(layout)
    states = read_step_events(layout, name)
    manifests: dict[str, Manifest] = {}
    for step in plan.steps:
        manifest = store.find(step.kind, step.key)
        if manifest is not None and step.name in states and states[step.name]["state"] in FINISHED:
            manifests[step.name] = manifest
    report = write_report(plan, {step: dict(event) for step, event in states.items()}, manifests, layout, name)
    log_report_written(layout, name)
    return report
