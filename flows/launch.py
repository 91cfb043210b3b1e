"""Simple functions for callers: a recipe to a plan, a plan to a finished run."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flows.compile import compile_recipe
from flows.execute import Execution, Executor, Reporter, execute
from flows.planning.estimate import Outlook
from flows.planning.selection import selected
from flows.planning.skew import check_engines, engine_problems
from flows.running.alive import alive
from flows.running.audited import run_ended, run_started
from flows.running.budget import open_ledger
from flows.running.enforced_stop import enforced_stop
from flows.running.interrupts import stopped_by_signals
from flows.running.leftovers import sweep
from flows.running.runlog import RunLog, new_run, write_plan
from flows.running.states import EXIT_CANCELLED, StepState, exit_code
from flows.steps.restoring import restore_damaged
from flows.steps.workers import check_machine
from lineage.artifacts.store import Store
from lineage.audit.log import anchor_of
from lineage.layout import Layout
from schemas.plan import Plan, Step
from schemas.recipe.load import load_recipe

ExecutorName = Literal["ray", "inprocess"]
Carry = Callable[[Execution, Callable[[], None]], object]
"""Performs all steps, then calls the function that it is given."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    run: str
    states: dict[str, StepState]

    @property
    def exit_code(self) -> int:
        """0 ok, 1 a step failed, 2 a gate failed, 130 stopped."""
        return exit_code(self.states)


def plan_recipe(
    path: Path | str,
    layout: Layout,
    *,
    profile: str | None = None,
    overrides: Sequence[str] = (),
    to: Sequence[str] = (),
    start: Sequence[str] = (),
    fresh: bool = False,
    locked: bool = False,
    warn: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Compile a recipe, or a part of it (`flows.planning.selection`); `warn` hears what is only worth a word.

    `locked` holds the recipe to its lock (`flows.planning.locking`). Raises RecipeError or PlanError.
    """
    recipe = load_recipe(path, profile=profile, overrides=tuple(overrides))
    for problem in recipe.warnings:
        warn(str(problem))
    plan = compile_recipe(recipe, layout).model_copy(update={"overrides": tuple(overrides)})
    if locked:
        from flows.planning.locking import check_locked

        check_locked(plan, layout, recipe.folders)
    for text in engine_problems(plan.steps):
        warn(text)
    return selected(plan, layout, to=to, start=start, fresh=fresh)


def run_plan(
    plan: Plan,
    layout: Layout,
    *,
    executor: ExecutorName = "ray",
    prefect: bool = True,
    reporter: Reporter | None = None,
    run: str | None = None,
    carry: Carry | None = None,
    project: Callable[[Outcome], object] = lambda outcome: None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run a plan to its end; `run` goes on with that run. What is there already starts no server and no Ray.

    `carry` performs it in a flow run that is there; `project` is called, unless stopped, while Prefect shows the run.
    Ctrl-C, SIGTERM or `stop` ends the steps and the run (exit code 130), which can be resumed; steps in this process
    that do not end are ended with it (`flows.running.enforced_stop`). Raises PlanError before anything starts when a
    step asks for more than there is.
    """
    restored = restore_damaged(plan.steps, layout)
    missing, run = _missing(plan, layout, executor), run or new_run()
    write_plan(layout, run, plan)
    sweep(layout)
    log = RunLog(layout, run, reporter)
    outlook = _announce(log, run, Outlook(plan, layout))
    used_prefect = prefect and carry is None and executor == "ray" and bool(missing)
    stop = stop or threading.Event()
    with (
        alive(layout, run),
        stopped_by_signals(stop),
        _server(layout, used_prefect) as ready,
        _executor(executor if missing else None, layout) as hands,
        stopped_by_signals(stop),  # again: Ray sets handlers of its own
    ):
        if hands is not None:
            hands.check(missing)
        ledger = open_ledger(run, outlook) if missing else None
        execution = Execution(plan, layout, hands, log, run, stop, ledger, outlook)
        execution.restored = restored
        used_prefect = used_prefect and ready(stop)
        _carried_out(execution, used_prefect, carry, lambda: _ended(execution, log, project))
    return Outcome(run, execution.states)


def _missing(plan: Plan, layout: Layout, executor: ExecutorName) -> list[Step]:
    """The steps whose artifacts are not there. Raises PlanError when one asks for more than this machine has."""
    store = Store(layout)
    missing = [s for s in plan.steps if store.find(s.kind, s.key) is None]
    check_engines(missing)
    if executor == "ray":
        check_machine(missing)
    return missing


def _ended(execution: Execution, log: RunLog, project: Callable[[Outcome], object]) -> None:
    outcome = Outcome(execution.run, execution.states)
    noted = run_ended(execution.layout, outcome.run, outcome.states, outcome.exit_code)
    told = {"type": "run", "run": outcome.run, "state": "ended", "exit_code": outcome.exit_code}
    log.event({**told, "audit": anchor_of(noted)})
    if outcome.exit_code != EXIT_CANCELLED:  # whoever stops a run does not wait; resuming it projects
        project(outcome)


def _announce(log: RunLog, run: str, outlook: Outlook) -> Outlook:
    plan, verdicts = outlook.plan, outlook.verdicts
    run_started(outlook.layout, run, plan, sum(hit == "HIT" for hit, _ in verdicts.values()))
    log.event({"type": "run", "run": run, "state": "started", "recipe": plan.recipe, "steps": len(plan.steps)})
    for name, (hit, why) in verdicts.items():
        log.event({"type": "step", "step": name, "state": "queued", "reason": f"{hit}: {why}"})
    return outlook


def _carried_out(execution: Execution, prefect: bool, carry: Carry | None, ended: Callable[[], None]) -> None:
    if carry is None and prefect:
        from flows.servers.unshown import shown_while_it_can_be

        carry = shown_while_it_can_be
    if carry is not None:
        carry(execution, ended)
    else:
        execute(execution)
        ended()


@contextmanager
def _server(layout: Layout, wanted: bool) -> Iterator[Callable[[threading.Event], bool]]:
    if not wanted:
        yield lambda stop: False
        return
    from flows.servers.prefect_server import prefect_server

    with prefect_server(layout) as ready:
        yield ready


@contextmanager
def _executor(name: ExecutorName | None, layout: Layout) -> Iterator[Executor | None]:
    if name is None:
        yield None
    elif name == "ray":
        from flows.steps.workers import RayWorkers

        with closing(RayWorkers(layout)) as hands:
            yield hands
    else:
        from flows.steps.inprocess import InProcess

        with enforced_stop():  # a step's call of C code may keep the handlers of this process from running
            yield InProcess()
