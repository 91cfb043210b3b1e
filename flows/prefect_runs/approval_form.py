"""The approval of a gate in Prefect's UI: the flow run pauses with a typed form and a page of evidence."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.responses import SetStateStatus
from prefect.input import RunInput, keyset_from_paused_state
from prefect.states import Paused, Running
from pydantic import Field

from flows.execution.approval import LOOK, ApprovalQueue, ApprovalRequest, PersonalDecision
from flows.execution.execute import Execution
from flows.prefect_runs.artifacts import show_page
from flows.prefect_runs.evidence_page import make_evidence_page, summarise_request
from flows.prefect_runs.flow_context import current_flow_run
from flows.servers.up import read_addresses
from lineage.audit.approvals import Decision
from lineage.layout import Layout

MARGIN = 600.0
"""Seconds by which Prefect would end a pause later than we do."""


class Approval(RunInput):
    """A gate did not pass. Approve to continue as if it had, reject to stop here."""

    decision: Decision = Field(title="Decision", description="Continue as if the gate had passed, or stop here.")
    name: str = Field(title="Your name", min_length=1)
    reason: str = Field(title="Reason", min_length=1, description="Kept with the model's lineage.")


def open_queue(execution: Execution) -> ApprovalQueue:
    """Return the queue of a flow run; people are asked only on a server that outlives the run."""

    def pause(question: ApprovalRequest, over: Callable[[], bool]) -> PersonalDecision | None:
        return ask_in_prefect(execution, question, over)

    queue = ApprovalQueue(execution, pause)
    if is_watched(execution.layout):
        execution.ask_people = queue.ask
    return queue


def is_watched(layout: Layout) -> bool:
    """Return whether the Prefect server outlives this run: that of `posttrain up`, or the user's own."""
    url = os.environ.get("PREFECT_API_URL", "")
    if read_addresses(layout).get("prefect") == url:
        return True
    try:
        own = (layout.state / "prefect" / "server.json").read_text()
    except OSError:
        return bool(url)
    return bool(url) and f'"{url}"' not in own


def ask_in_prefect(
    execution: Execution, question: ApprovalRequest, over: Callable[[], bool]
) -> PersonalDecision | None:
    """Pause the flow run with a form until it is filled in; return None when `over` or unanswered in time.

    Prefect's own `pause_flow_run` reacts neither to Ctrl-C nor to `posttrain approve` while it waits.
    """
    flow_run, logger = current_flow_run().id, get_run_logger()
    name = f"evidence-{question.step.name}-{question.gate.index}"
    page = make_evidence_page(execution, question)
    link = show_page(execution.plan, name, page, f"What to decide about: {question.step.name}, {question.gate.name}.")
    limit = time.monotonic() + question.within
    state = Paused(
        pause_expiration_time=datetime.now(UTC) + timedelta(seconds=question.within + MARGIN),
        pause_key=uuid4().hex,
        name="AwaitingApproval",
    )
    keys = keyset_from_paused_state(state)
    # The stubs take keys of another class than Prefect itself passes here.
    state.state_details.run_input_keyset = cast(Any, keys)
    form = Approval.with_initial_data(description=summarise_request(question, link))
    form.save(keys, flow_run_id=flow_run)
    logger.warning("%s waits for approval: %s", question.step.name, question.gate.text)
    with get_client(sync_client=True) as client:
        placed = client.set_flow_run_state(flow_run, state)
        if placed.status is not SetStateStatus.ACCEPT:
            logger.warning("the run could not be paused (%s): posttrain approve decides as well", placed.details)
            return None
        while not over() and time.monotonic() < limit:
            now = client.read_flow_run(flow_run).state
            if now is None or now.is_cancelling() or now.is_final():
                execution.stop.set()
                return None
            if now.is_running():
                # Outside of an event loop Prefect returns the form, and not a coroutine as its stubs say.
                answer = cast(Approval, form.load(keys, flow_run_id=flow_run))
                return PersonalDecision(answer.decision, answer.name, answer.reason)
            execution.stop.wait(LOOK)
        if (now := client.read_flow_run(flow_run).state) is not None and now.is_paused():
            client.set_flow_run_state(flow_run, Running(), force=True)
    return None
