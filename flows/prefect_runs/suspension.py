"""Suspend and Resume in Prefect's UI: the process of a suspended run stops like a cancelled one, but says nothing.

Prefect itself only keeps further tasks from starting: what runs goes on, and a resumed run would have two processes.
"""

import contextlib
import os
import threading
from collections.abc import Iterator

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import Pause

LOOK = 1.0
"""Seconds between looks at the state of the flow run."""


class Suspension:
    """Whether the flow run of this process was suspended, or suspended and resumed already."""

    def __init__(self, process: int):
        self.process, self.is_known = process, False
        self.state: State | None = None
        """The state that Prefect shows, once this process must end."""

    def is_over(self, now: FlowRun) -> bool:
        """Return whether this process must end: its run is suspended, waits for another process, or has one."""
        state = now.state
        if state is None:
            return False
        is_mine = (now.infrastructure_pid or "").rpartition(":")[2] == str(self.process)
        self.is_known = self.is_known or is_mine  # a worker writes the number a moment after the start
        is_suspended = state.is_paused() and bool(state.state_details.pause_reschedule)
        return is_suspended or state.is_scheduled() or state.is_pending() or (self.is_known and not is_mine)

    def end_process(self) -> None:
        """Leave the flow without a state of its own, so that the run stays as Prefect shows it."""
        raise Pause(state=self.state)


@contextlib.contextmanager
def watch_suspension(flow_run: FlowRun, stop: threading.Event) -> Iterator[Suspension]:
    """Inside, set `stop` when the flow run of a deployment is suspended: steps end, and keep their checkpoints."""
    suspension, over = Suspension(os.getpid()), threading.Event()

    def look() -> None:
        while not over.wait(LOOK) and not stop.is_set():
            with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # a server that is restarted
                now = client.read_flow_run(flow_run.id)
                if suspension.is_over(now):
                    suspension.state = now.state
                    stop.set()

    watcher = threading.Thread(target=look, name="suspension", daemon=True)
    watcher.start()
    try:
        yield suspension
    finally:
        over.set()
        watcher.join(10)
