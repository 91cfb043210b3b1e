"""When the process of a flow run must end for a suspension; the worker starts no second process beside it."""

import asyncio
import io
import logging
import threading
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import Pause
from prefect.states import AwaitingRetry, Completed, Paused, Pending, Running, Scheduled, Suspended

from flows.execution.states import StepState
from flows.prefect_runs import suspension
from flows.prefect_runs.pipeline import hide_empty_tracebacks, make_task_state
from flows.prefect_runs.suspension import Suspension, watch_suspension
from flows.servers.worker_main import OneProcessWorker, ProcessWorker, RetryAwareProposer, StateProposer


def shown(state, pid="4711"):
    return FlowRun(flow_id=uuid4(), state=state, infrastructure_pid=pid)


@pytest.mark.parametrize(
    ("state", "is_over"),
    [
        (Running(), False),
        (Suspended(timeout_seconds=60), True),
        (Paused(timeout_seconds=60), False),  # an approval: the process waits for it
        (Scheduled(), True),  # suspended and resumed between two looks
        (Pending(), True),
        (Completed(), False),
        (None, False),
    ],
)
def test_states_that_end_the_process(state, is_over):
    assert Suspension(4711).is_over(shown(state)) == is_over


def test_another_process_of_the_run_ends_this_one_but_not_a_number_from_before(monkeypatch):
    mine = Suspension(4711)
    assert not mine.is_over(shown(Running(), "host:99"))  # of the process before; the worker has not written ours yet
    assert not mine.is_over(shown(Running(), None))
    assert not mine.is_over(shown(Running(), "host:4711"))
    assert mine.is_over(shown(Running(), "host:99"))


def test_a_suspended_run_is_stopped_and_its_process_leaves_the_state_alone(monkeypatch):
    state, stop = Suspended(timeout_seconds=60), threading.Event()
    looks = iter([Running(), Running(), state])

    class Client:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read_flow_run(self, _):
            return shown(next(looks))

    monkeypatch.setattr(suspension, "LOOK", 0.001)
    monkeypatch.setattr(suspension, "get_client", lambda sync_client: Client())
    with watch_suspension(shown(Running()), stop) as watched:
        assert stop.wait(60)
    assert watched.state is state
    with pytest.raises(Pause) as left:
        watched.end_process()
    assert left.value.state is state


def test_a_worker_leaves_a_flow_run_whose_process_runs_for_later(monkeypatch):
    flow_run, other, submitted, started = SimpleNamespace(id=uuid4()), SimpleNamespace(id=uuid4()), [], []
    ended = asyncio.Event()

    async def run(self, flow_run, *args, **options):
        started.append(flow_run)
        await ended.wait()
        return 0

    async def submit(self, flow_run_response):
        submitted.append([entry.flow_run for entry in flow_run_response])
        return []

    monkeypatch.setattr(ProcessWorker, "run", run)
    monkeypatch.setattr(ProcessWorker, "_submit_scheduled_flow_runs", submit)

    async def scenario():
        worker = OneProcessWorker("pool")
        due = [SimpleNamespace(flow_run=flow_run), SimpleNamespace(flow_run=other)]
        process = asyncio.create_task(worker.run(flow_run))
        while not started:
            await asyncio.sleep(0)
        await worker._submit_scheduled_flow_runs(due)
        ended.set()
        await process
        await worker._submit_scheduled_flow_runs(due)

    asyncio.run(scenario())
    assert submitted == [[other], [flow_run, other]]


@pytest.mark.parametrize(("state", "proposed"), [(Scheduled(), 0), (AwaitingRetry(), 0), (Running(), 1), (None, 1)])
def test_a_failed_process_of_a_run_that_was_retried_meanwhile_is_no_crash(monkeypatch, state, proposed):
    flow_run, crashes = shown(Running()), []

    class Client:
        async def read_flow_run(self, _):
            return shown(state)

    async def propose(*given, **_):
        crashes.append(given)

    monkeypatch.setattr(StateProposer, "propose_crashed", propose)
    monkeypatch.setattr(ProcessWorker, "_propose_crashed_state", propose)
    asyncio.run(RetryAwareProposer(client=Client()).propose_crashed(flow_run, "exited with 1"))
    assert len(crashes) == proposed
    asyncio.run(OneProcessWorker("pool")._propose_crashed_state(flow_run, "exited with 1", Client()))
    assert len(crashes) == 2 * proposed


def test_a_stopped_step_is_cancelled_in_prefect():
    state = make_task_state(StepState("a", "cancelled", "stopped; `posttrain resume` continues"))
    assert (state.type, state.name) == (StateType.CANCELLED, "Cancelled")
    assert make_task_state(StepState("a", "failed", "no")).type == StateType.FAILED


def test_a_failed_step_has_no_empty_traceback_in_its_log_and_a_real_one_stays(monkeypatch):
    logger, written = logging.getLogger("prefect.task_runs"), io.StringIO()
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(written)])
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "propagate", False)
    hide_empty_tracebacks()
    logger.error("failed with state", exc_info=True)
    assert written.getvalue() == "failed with state\n"
    try:
        raise ValueError("a cause")
    except ValueError:
        logger.error("crashed", exc_info=True)
    assert "ValueError: a cause" in written.getvalue()


def test_stopped_steps_are_warnings_in_the_log_and_failed_ones_errors(monkeypatch, caplog):
    logger = logging.getLogger("prefect.task_runs")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "propagate", False)
    hide_empty_tracebacks()
    messages = [
        "Finished in state Cancelled('stopped')",
        "Finished in state NotReady('upstream')",
        "Finished in state Failed('no')",
    ]
    with caplog.at_level(logging.INFO, logger.name):
        monkeypatch.setattr(logger, "handlers", [caplog.handler])
        for message in messages:
            logger.error(message)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == list(
        zip(["WARNING", "WARNING", "ERROR"], messages, strict=True)
    )
