"""Differences between two runs: recipe, data, code, environment, metrics, steps and cost."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from flows.execution.events import RecordedStep
from flows.execution.results import ScoredRow, is_number, read_scores
from flows.execution.run_log import read_plan, read_step_events
from flows.execution.states import FINISHED
from flows.history.diff_data import DataChange, compare_data
from flows.planning.difference import list_changes, list_code_changes
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.reports.headline import ALL
from schemas.manifest import Manifest
from schemas.plan import Plan


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    run: str
    plan: Plan
    states: dict[str, RecordedStep]
    """Step to its last event."""
    manifests: dict[str, Manifest]
    """Step to its manifest, for finished steps whose artifacts exist."""


@dataclass(frozen=True)
class Change:
    """One difference: the name of what differs (a dotted path, a package, a module) and its value in each run."""

    what: str
    before: Any
    after: Any
    steps: tuple[str, ...] = ()
    """Affected steps; empty if the difference concerns the whole run."""


@dataclass(frozen=True)
class MetricChange:
    """A metric that differs; `interval` is that of the difference, computed from both intervals if they exist.

    `outside`: whether the interval of the difference excludes 0; None without intervals.
    """

    step: str
    metric: str
    before: float
    after: float
    interval: tuple[float, float] | None = None
    outside: bool | None = None


@dataclass(frozen=True)
class Steps:
    """Steps by outcome; those in `again` ran under another key and produced the same bytes."""

    same: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    """Steps in both plans for which at least one run has no artifact."""
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """All differences between two runs."""

    before: str
    after: str
    recipe: tuple[Change, ...] = ()
    data: tuple[DataChange, ...] = ()
    code: tuple[Change, ...] = ()
    environment: tuple[Change, ...] = ()
    metrics: tuple[MetricChange, ...] = ()
    steps: Steps = field(default_factory=Steps)
    cost: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Wall, CPU and GPU seconds of the steps that each run executed, and wall seconds of its cached steps."""

    @property
    def is_empty(self) -> bool:
        """Whether recipe, data, code, environment, metrics and artifacts are the same."""
        moved = self.steps.again + self.steps.changed + self.steps.only_before + self.steps.only_after
        return not (self.recipe or self.data or self.code or self.environment or self.metrics or moved)

    def as_json(self) -> dict[str, object]:
        """Return plain data for `--json`."""
        return asdict(self)


def compare(before: str, after: str, layout: Layout) -> Difference:
    """Return the differences between two runs, given by name. Raise PlanError if there is no such run."""
    a, b = read_side(before, layout), read_side(after, layout)
    both = [step.name for step in b.plan.steps if step.name in {s.name for s in a.plan.steps}]
    return Difference(
        before=before,
        after=after,
        recipe=tuple(_compare_recipes(a, b)),
        data=tuple(compare_data(a.plan, b.plan, a.manifests, b.manifests, Store(layout))),
        code=tuple(_compare_code(a, b, both)),
        environment=tuple(_compare_environments(a, b, both)),
        metrics=tuple(_compare_metrics(a, b, both)),
        steps=_compare_steps(a, b, both),
        cost=_compare_cost(a, b),
    )


def read_side(run: str, layout: Layout) -> Side:
    """Return a recorded run. Raise PlanError if there is no such run."""
    plan, store = read_plan(layout, run), Store(layout)
    states = read_step_events(layout, run)
    manifests = {}
    for step in plan.steps:
        if states.get(step.name, {}).get("state") in FINISHED and (manifest := store.find(step.kind, step.key)):
            manifests[step.name] = manifest
    return Side(run, plan, states, manifests)


def _compare_recipes(a: Side, b: Side) -> Iterator[Change]:
    """Yield differences in the recipes with all defaults, including the names of recipe and profile and the head."""
    plans = [side.plan.model_dump(mode="json", exclude={"steps", "resolved", "file", "overrides"}) for side in (a, b)]
    for path, old, new in list_changes(plans[0] | a.plan.resolved, plans[1] | b.plan.resolved):
        yield Change(path, old, new)


def _compare_code(a: Side, b: Side, both: Iterable[str]) -> Iterator[Change]:
    """Yield each changed module once, with the steps that use it."""
    users: dict[str, list[str]] = {}
    for name in both:
        for line in list_code_changes(a.plan.step(name).code, b.plan.step(name).code):
            users.setdefault(line.removeprefix("code: "), []).append(name)
    for line, steps in sorted(users.items()):
        module, _, what = line.partition(" ")
        before, after = {"changed": ("one", "another"), "is used now": (None, "used")}.get(what, ("used", None))
        yield Change(module, before, after, tuple(steps))


def _compare_environments(a: Side, b: Side, both: Iterable[str]) -> Iterator[Change]:
    """Yield differences in the environments that produced the artifacts of steps with different artifacts."""
    users: dict[tuple[str, Any, Any], list[str]] = {}
    for name in both:
        old, new = a.manifests.get(name), b.manifests.get(name)
        if old is not None and new is not None and old != new:
            for path, one, other in list_changes(_describe_environment(old), _describe_environment(new)):
                users.setdefault((path, one, other), []).append(name)
    for (what, one, other), steps in users.items():
        yield Change(what, one, other, tuple(steps))


def _describe_environment(manifest: Manifest) -> dict[str, object]:
    return {**manifest.versions, "commit": manifest.commit, "uncommitted changes": manifest.dirty, **manifest.machine}


def _compare_metrics(a: Side, b: Side, both: Iterable[str]) -> Iterator[MetricChange]:
    for name in both:
        old, new = a.manifests.get(name), b.manifests.get(name)
        if old is None or new is None or old.key == new.key:
            continue
        measured = _index_scores(old), _index_scores(new)
        for line in (line for line in measured[1] if line in measured[0]):
            one, other = measured[0][line], measured[1][line]
            if one["value"] != other["value"]:
                interval = compute_difference_interval(one, other)
                outside = not interval[0] <= 0.0 <= interval[1]
                yield MetricChange(name, line, one["value"], other["value"], interval, outside)
        compared = {
            *measured[0],
            *(line["metric"] for line in measured[0].values()),
        }  # `accuracy`: the last model's
        for metric, one, other in list_changes(old.metrics, new.metrics):
            if metric not in compared and is_number(one) and is_number(other):
                yield MetricChange(name, metric, one, other)


def _index_scores(manifest: Manifest) -> dict[str, ScoredRow]:
    """Return the rows of an evaluation's table by the names of their values among the metrics."""
    return {
        f"{line['metric']}.{line['model']}" + ("" if line["family"] == ALL else f".{line['family']}"): line
        for line in read_scores(manifest)
    }


def compute_difference_interval(one: ScoredRow, other: ScoredRow) -> tuple[float, float]:
    """Return the interval of other − one, assuming independent measurements (Zou and Donner 2008, eq. 2)."""
    gain = other["value"] - one["value"]
    down = math.hypot(other["value"] - other["low"], one["high"] - one["value"])
    up = math.hypot(other["high"] - other["value"], one["value"] - one["low"])
    return gain - down, gain + up


def _compare_steps(a: Side, b: Side, both: list[str]) -> Steps:
    names: dict[str, list[str]] = {"same": [], "again": [], "changed": [], "unfinished": []}
    for name in both:
        old, new = a.manifests.get(name), b.manifests.get(name)
        if old is None or new is None:
            names["unfinished"].append(name)
        elif old.key == new.key:
            names["same"].append(name)
        else:
            equal = {n: o.digest for n, o in old.outputs.items()} == {n: o.digest for n, o in new.outputs.items()}
            names["again" if equal else "changed"].append(name)
    return Steps(
        **{what: tuple(members) for what, members in names.items()},
        only_before=tuple(s.name for s in a.plan.steps if s.name not in both),
        only_after=tuple(s.name for s in b.plan.steps if s.name not in both),
    )


def _compare_cost(a: Side, b: Side) -> dict[str, tuple[float, float]]:
    def spent(side: Side, what: str) -> float:
        return sum(getattr(m, what) for n, m in side.manifests.items() if side.states[n]["state"] == "done")

    def saved(side: Side) -> float:
        return sum(m.seconds for n, m in side.manifests.items() if side.states[n]["state"] == "cached")

    costs = {what: (spent(a, what), spent(b, what)) for what in ("seconds", "cpu_seconds", "gpu_seconds")}
    return {**costs, "saved_seconds": (saved(a), saved(b))}
