"""Audit log entries of runs."""

from flows.execution.run_log import read_plan
from flows.execution.states import FINISHED, StepState
from flows.planning.compile import has_own_key
from lineage.audit.chain import read_chain
from lineage.audit.log import Entry, append
from lineage.audit.run_checks import EVENTS, PLAN, REPORT, describe_file, describe_records
from lineage.digests import digest_of
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.plan import Plan


def read_verified_plan(layout: Layout, run: str) -> Plan:
    """Return the plan of a run, checked against the audit log and the keys of its steps.

    Raise PlanError if there is no such run, or its plan is not the one it began with.
    """
    plan = read_plan(layout, run)
    digests = [
        e["facts"].get("plan")
        for e in read_chain(layout).entries
        if e["action"] == "run started" and e["facts"].get("run") == run
    ]
    file = layout.run(run) / PLAN
    if digests and digests[-1] != describe_file(file)["sha256"]:
        raise PlanError(f"{file} differs from the plan that the audit log has for run {run}; run the recipe again")
    wrong = [step.name for step in plan.steps if not has_own_key(step, plan)]
    if wrong:
        raise PlanError(f"{file}: the settings of {wrong[0]} do not match its key; run the recipe again")
    return plan


def log_run_started(layout: Layout, run: str, plan: Plan, hits: int) -> Entry:
    """Record the plan that a run begins with: digests of its file and of the recipe with all defaults."""
    return append(
        layout,
        "run started",
        run=run,
        recipe=plan.recipe,
        file=plan.file,
        profile=plan.profile,
        plan=describe_file(layout.run(run) / PLAN)["sha256"],
        recipe_digest=digest_of(plan.resolved),
        steps=len(plan.steps),
        hits=hits,
    )


def log_run_ended(layout: Layout, run: str, states: dict[str, StepState], exit_code: int) -> Entry:
    """Record how a run and its steps ended, with digests of its events so far and of its cost."""
    steps: dict[str, dict[str, object]] = {name: {"state": state.state} for name, state in states.items()}
    for name, state in states.items():
        if state.manifest is not None and state.state in FINISHED:
            steps[name]["key"] = state.manifest.key
    folder = layout.run(run)
    return append(
        layout,
        "run ended",
        run=run,
        exit_code=exit_code,
        steps=steps,
        events=describe_file(folder / EVENTS),
        records=describe_records(folder),
    )


def log_report_written(layout: Layout, run: str) -> Entry:
    """Record the report of a run as just written, and the run's events until then."""
    folder = layout.run(run)
    events = describe_file(folder / EVENTS) if (folder / EVENTS).is_file() else None
    return append(layout, "report written", run=run, report=describe_file(folder / REPORT), events=events)
