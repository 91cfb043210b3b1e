"""A flow run is dead when its process is gone; of what runs elsewhere nothing is known."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import StateType

from flows.deployments.dead_runs import is_dead, mark_crashed

NOW = datetime.now(UTC)


def flow_run(pid, state=StateType.RUNNING, ago=0.0):
    since = SimpleNamespace(timestamp=NOW - timedelta(seconds=ago))
    return SimpleNamespace(id=1, infrastructure_pid=pid, state_type=state, state=since, created=since.timestamp)


@pytest.fixture
def gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return str(process.pid)


def test_a_process_that_is_gone_or_another_that_has_its_number_now(gone):
    assert is_dead(flow_run(gone), NOW)
    assert is_dead(flow_run(gone, StateType.PENDING), NOW)
    assert not is_dead(flow_run(str(os.getpid())), NOW)
    assert is_dead(flow_run(str(os.getpid()), ago=10**7), NOW)


def test_one_that_a_worker_took_and_never_began():
    assert not is_dead(flow_run(None, StateType.PENDING, ago=60), NOW)
    assert is_dead(flow_run(None, StateType.PENDING, ago=600), NOW)
    assert not is_dead(flow_run(None, ago=600), NOW)


def test_what_runs_elsewhere_is_left_alone(gone):
    assert not is_dead(flow_run(f"another-host:{gone}", ago=600), NOW)
    assert not is_dead(flow_run("cluster:namespace:job-abc", ago=600), NOW)


def test_the_dead_are_shown_as_crashed_and_nothing_else_is_touched(gone):
    alive, dead = flow_run(str(os.getpid())), flow_run(gone)
    dead.id = uuid4()
    messages = []
    tasks = []
    client = SimpleNamespace(
        read_task_runs=lambda **wanted: [SimpleNamespace(id=f"task of {wanted['flow_run_filter'].id.any_}")],
        set_task_run_state=lambda task, state, force: tasks.append((task, state.type, force)),
        read_flow_runs=lambda **wanted: [alive, dead],
        set_flow_run_state=lambda run, state, force: messages.append(
            (run, state.type, "Retry" in state.message, force)
        ),
    )
    assert mark_crashed(client, [uuid4()]) == [dead]
    assert messages == [(dead.id, StateType.CRASHED, True, True)]
    assert tasks == [(f"task of {[dead.id]}", StateType.CRASHED, True)]
    assert mark_crashed(client, []) == []


def test_one_that_a_person_cancelled_did_not_die(gone):
    states = []
    cancelled = flow_run(gone, StateType.CANCELLING)
    cancelled.id = uuid4()
    client = SimpleNamespace(
        read_task_runs=lambda **wanted: [],
        read_flow_runs=lambda **wanted: [cancelled],
        set_flow_run_state=lambda run, state, force: states.append((state.type, state.message)),
    )
    mark_crashed(client, [uuid4()])
    assert states == [(StateType.CANCELLED, "cancelled; Retry continues from the finished steps")]
