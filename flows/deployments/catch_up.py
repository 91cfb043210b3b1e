"""Decide whether a scheduled flow run may do its work, for due times that were missed or met an active run.

Prefect starts late runs anyway, as many as it had scheduled ahead (three, or an hour's), and none for the due times
after those. So each scheduled run asks here first, and the first that asks applies the policy to the others.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import flow_run as current
from prefect.states import Cancelling, Completed, Scheduled

from flows.deployments.schedules import list_due_times
from schemas.errors import StepError
from schemas.schedule import Schedule

CATCH_UP = "made-up-for"
"""Tag of flow runs for due times that Prefect had not scheduled."""
WAITING = ("Scheduled", "Late", "AwaitingConcurrencySlot")
GRACE = timedelta(minutes=1)
"""Longest delay of a run without downtime; at most half the time to the next due time."""
FIRST_TURN, TURN = timedelta(seconds=15), timedelta(minutes=1)
"""Delay until the first waiting flow run is tried again, and delay between consecutive ones.

A worker starts flow runs up to ten seconds early. The delays ensure that this run has ended by then, and that a failed
attempt is repeated before the next flow run.
"""
CANCEL_LIMIT = 120.0
"""Seconds until a cancelled run must have ended."""


@dataclass(frozen=True)
class DueRun:
    """A flow run for a due time."""

    due: datetime
    """When it should have started."""
    tried: datetime
    """When something first tried to start it."""
    following: datetime | None
    """The due time after it; None when there is none."""
    later: Sequence[datetime] = field(default=())
    """Later due times that have come, and have a flow run that was not cancelled and did not crash."""
    overlaps: str | None = None
    """Name of another run that was going on when this one was due."""

    @property
    def is_missed(self) -> bool:
        """Return whether nothing tried to start it when it was due."""
        half = (self.following - self.due) / 2 if self.following else GRACE
        return self.tried - self.due > min(GRACE, half)


def find_skip_reason(due_run: DueRun, schedule: Schedule) -> str | None:
    """Return why a flow run must not do its work; None if it may."""
    if due_run.is_missed:
        policy = schedule.catch_up
        if policy == "skip" or (policy == "latest" and due_run.later):
            return f"Skipped: missed while down (catch_up: {policy})"
    elif due_run.overlaps and schedule.overlap == "skip":
        return f"Skipped: {due_run.overlaps} was still running (overlap: skip)"
    return None


def list_unscheduled(schedule: Schedule, now: datetime, scheduled: Iterable[datetime]) -> list[datetime]:
    """Return due times between the first of `scheduled` and now that have no flow run."""
    there = sorted(scheduled)
    gone = list_due_times(schedule, there[0], until=now) if there else []
    return [due for due in gone if all(abs(due - other) > timedelta(seconds=0.5) for other in there)]


def settle_due_times(schedule: Schedule | None) -> str | None:
    """Return why a deployed flow run must end at once, None if it may work; called first in it.

    It also applies the policies: missed runs that must not run are ended, due times without a flow run get one
    (`catch_up: all`), and an active run is cancelled (`overlap: cancel`). Flow runs started by hand, by a change or by
    a retry are never skipped. Raise StepError if a cancelled run does not end.
    """
    with _find_siblings(schedule) as siblings:
        if siblings is None or siblings.run.run_count > 1:
            return None
        siblings.settle()
        if siblings.reason is None and siblings.schedule.overlap == "cancel":
            siblings.cancel_active()
        return siblings.reason


def queue_waiting_runs(schedule: Schedule | None) -> None:
    """Let the waiting flow run that was due first take this one's place; called last in a deployed flow run.

    Prefect would let them try in turns, and the first to try would take the place.
    """
    with suppress(Exception), _find_siblings(schedule) as siblings:  # a matter of order only: the run has ended
        if siblings is not None:
            siblings.queue_waiting()


@contextmanager
def _find_siblings(schedule: Schedule | None) -> Iterator["Siblings | None"]:
    if schedule is None or current.id is None:
        yield None
        return
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(current.id))
        yield Siblings(client, run, schedule) if run.deployment_id else None


def is_due(run: FlowRun) -> bool:
    """Return whether a flow run is for a due time."""
    return bool(run.auto_scheduled) or CATCH_UP in run.tags


class Siblings:
    """The flow runs of one deployment, from the view of one of them."""

    def __init__(self, client: SyncPrefectClient, run: FlowRun, schedule: Schedule):
        self.client, self.run, self.schedule = client, run, schedule
        self.now = datetime.now(UTC)
        self.arrived = [r for r in self._runs(expected_start_time={"before_": self.now}) if is_due(r)]
        """Latest flow runs whose due time has come."""
        self.reason: str | None = None
        """Reason why the run that has this view must not do its work."""
        if is_due(run) and run.run_count <= 1:
            self.reason = self.verdict(run)

    def verdict(self, run: FlowRun) -> str | None:
        """Return why one of them must not do its work; None if it may."""
        due = _due_time(run)
        due_times = [_due_time(r) for r in self.arrived if r.state_type not in (StateType.CANCELLED, StateType.CRASHED)]
        following = list_due_times(self.schedule, due, count=1)
        due_run = DueRun(
            due=due,
            tried=self._find_first_try(run),
            following=following[0] if following else None,
            later=[other for other in due_times if other > due],
            overlaps=self._find_overlap(run, due),
        )
        return find_skip_reason(due_run, self.schedule)

    def settle(self) -> None:
        """End missed flow runs that must not run; create flow runs for due times that have none."""
        for other in self._waiting():
            if is_due(other) and (reason := self.verdict(other)):
                self.client.set_flow_run_state(other.id, Completed(name="Skipped", message=reason), force=True)
        if self.schedule.catch_up != "all" or not is_due(self.run):
            return
        started = [r for r in self.arrived if r.state_type != StateType.CRASHED or r.run_count]
        scheduled = [_due_time(r) for r in started if _due_time(r) >= _due_time(self.run)]
        assert self.run.deployment_id is not None  # siblings are those of a deployment
        for due in list_unscheduled(self.schedule, self.now, scheduled):
            self.client.create_flow_run_from_deployment(
                self.run.deployment_id,
                state=Scheduled(scheduled_time=due, message="missed while down"),
                parameters=self.run.parameters,
                tags=[CATCH_UP],
                idempotency_key=f"{CATCH_UP} {due.isoformat()}",
            )

    def queue_waiting(self) -> None:
        """Schedule waiting flow runs one after the other, in the order of their due times."""
        if self.schedule.overlap == "cancel":
            return
        for place, other in enumerate(sorted(self._waiting(), key=_due_time)):
            when = datetime.now(UTC) + FIRST_TURN + place * TURN
            state = Scheduled(name="AwaitingConcurrencySlot", scheduled_time=when, message="waits for its turn")
            self.client.set_flow_run_state(other.id, state, force=True)

    def cancel_active(self) -> None:
        """Cancel active runs and wait until they have ended."""
        running = self._list_active()
        for other in running:
            message = f"cancelled for {self.run.name} (overlap: cancel)"
            self.client.set_flow_run_state(other.id, Cancelling(message=message))
        limit = time.monotonic() + CANCEL_LIMIT
        while running := [r for r in (self.client.read_flow_run(r.id) for r in running) if not _has_ended(r)]:
            if time.monotonic() > limit:
                raise StepError(f"{running[0].name} was cancelled and has not ended after {CANCEL_LIMIT:.0f} s")
            time.sleep(0.5)

    def _waiting(self) -> list[FlowRun]:
        """Return flow runs that should have started and have not."""
        scheduled = self._runs(
            expected_start_time={"before_": self.now}, state={"type": {"any_": [StateType.SCHEDULED]}}
        )
        return [run for run in scheduled if run.id != self.run.id and run.state_name in WAITING]

    def _list_active(self) -> list[FlowRun]:
        """Return active runs that started before this one, without those that will skip themselves."""
        going_on = {"type": {"any_": [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]}}
        active = [r for r in self._runs(state=going_on) if r.id != self.run.id and _due_time(r) <= _due_time(self.run)]
        return [r for r in active if not (is_due(r) and self.verdict(r))]

    def _find_first_try(self, run: FlowRun) -> datetime:
        for state in sorted(self.client.read_flow_run_states(run.id), key=lambda s: s.timestamp):
            if state.type != StateType.SCHEDULED or state.name == "AwaitingConcurrencySlot":
                return _to_utc(state.timestamp)
        return self.now

    def _find_overlap(self, run: FlowRun, due: datetime) -> str | None:
        """Return another run that began before `due` and had not ended then; runs that skipped do not count."""
        for other in self._runs(start_time={"before_": due}):
            looked = other.state_name == "Skipped" or (other.id == self.run.id and self.reason is not None)
            began = other.state_type != StateType.SCHEDULED and not looked
            if other.id != run.id and began and (other.end_time is None or _to_utc(other.end_time) > due):
                return other.name
        return None

    def _runs(self, **filters: Any) -> list[FlowRun]:
        """Return the 200 latest flow runs of the deployment."""
        return self.client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate(filters),
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [self.run.deployment_id]}}),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=200,
        )


def _has_ended(run: FlowRun) -> bool:
    return run.state is None or run.state.is_final()


def _due_time(run: FlowRun) -> datetime:
    return _to_utc(run.expected_start_time or run.created)


def _to_utc(moment: Any) -> datetime:
    return datetime.fromtimestamp(moment.timestamp(), UTC)
