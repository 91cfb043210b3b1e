"""Find artifacts that runs need: the latest runs that did something, active ones, and resumable ones."""

from collections.abc import Iterator

from flows.execution.active_runs import is_active
from flows.execution.gates import STOPPING, judge_gates
from flows.execution.run_log import list_runs
from flows.execution.states import EXIT_CANCELLED
from lineage.artifacts.store import Store
from lineage.audit.claims import AuditCheck
from lineage.layout import Layout
from lineage.retention.keep import Reasons
from lineage.state_files import Unreadable, read_regular
from schemas.errors import PlanError
from schemas.plan import Plan
from schemas.suggestions import suggest

ALL = "all"
FAILED = 1


def find_needed(layout: Layout, log: AuditCheck, last: int, given_up: tuple[str, ...]) -> Reasons:
    """Return, by key, why a run needs the artifact or the unfinished work on it.

    Runs that only found artifacts do not count among the latest. A run in `given_up` (`all`: every one) keeps nothing
    for being resumed. Raise PlanError if there is no such run.
    """
    names = sorted({*list_runs(layout), *log.runs}, reverse=True)
    for run in given_up:
        if run not in (ALL, *names):
            raise PlanError(f"--give-up: no run `{run}`; {suggest(run, names, 'runs')}")
    needed: Reasons = {}
    latest = 0
    for run in names:
        latest += run in log.busy
        if is_active(layout, run):
            why = f"run {run}, which is active"
        elif run in log.busy and latest <= last:
            why = f"run {run}"
        elif not {run, ALL} & set(given_up) and is_resumable(layout, log, run):
            why = f"run {run}, which can be resumed"
        else:
            continue
        for key in list_keys(layout, log, run):
            needed.setdefault(key, why)
    return needed


def is_resumable(layout: Layout, log: AuditCheck, run: str) -> bool:
    """Return whether `posttrain resume` has something to do: the run was killed, stopped, failed or awaits approval."""
    entries = log.runs.get(run, {})
    started, ended = entries.get("run started"), entries.get("run ended")
    if ended is None or (started is not None and started["number"] > ended["number"]):
        return True
    code, steps = ended["facts"].get("exit_code"), ended["facts"].get("steps")
    if code in (FAILED, EXIT_CANCELLED):
        return True
    states = steps.values() if isinstance(steps, dict) else ()
    blocked = any(isinstance(step, dict) and step.get("state") == "blocked" for step in states)
    verdicts = list(_list_verdicts(layout, run)) if code else []
    return "waiting" in verdicts or (blocked and not STOPPING & set(verdicts))


def _list_verdicts(layout: Layout, run: str) -> Iterator[str]:
    """Yield the verdicts of a run's gates, with the decisions made since."""
    plan, store = _read_plan(layout, run), Store(layout)
    for step in plan.steps if plan else ():
        if (manifest := store.with_key(step.key)) is not None:
            yield from (gate.verdict for gate in judge_gates(step, manifest, layout))


def list_keys(layout: Layout, log: AuditCheck, run: str) -> Iterator[str]:
    """Yield the keys of a run's steps: from its plan, and from the audit log where the plan is gone or changed."""
    plan = _read_plan(layout, run)
    yield from (step.key for step in plan.steps) if plan else ()
    for entry in log.runs.get(run, {}).values():
        steps = entry["facts"].get("steps")
        for step in steps.values() if isinstance(steps, dict) else ():
            if isinstance(step, dict) and "key" in step:
                yield str(step["key"])
    yield from (key for key, entry in log.published.items() if entry["facts"].get("run") == run)


def _read_plan(layout: Layout, run: str) -> Plan | None:
    try:
        return Plan.model_validate_json(read_regular(layout.run(run) / "plan.json"))
    except (Unreadable, ValueError, RecursionError):
        return None
