"""The program of the worker: `prefect worker start`, with flow runs that have one process at a time.

Prefect's own worker ends with an error, and all its flow runs with it, if it must start a flow run whose process still
runs: one that was suspended, cancelled or has failed, and was resumed or retried at once. This one starts it when that
process ended, and does not call the run crashed meanwhile because the process ended as a failed one does.
"""

import warnings
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.cli import app
from prefect.runner._state_proposer import StateProposer
from prefect.workers.process import ProcessWorker

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun, State
    from prefect.client.schemas.responses import WorkerFlowRunResponse
    from prefect.workers.process import ProcessWorkerResult


async def is_scheduled(client: "PrefectClient", flow_run: "FlowRun") -> bool:
    """Return whether a flow run waits for its next process by now: someone pressed Retry or Resume."""
    now = await client.read_flow_run(flow_run.id)
    return now.state is not None and now.state.is_scheduled()


class RetryAwareProposer(StateProposer):
    """Prefect's proposer of states; a run that waits for its next process has not crashed."""

    async def propose_crashed(self, flow_run: "FlowRun", message: str) -> "State[Any] | None":
        """Propose Crashed unless the run is scheduled again."""
        return None if await is_scheduled(self._client, flow_run) else await super().propose_crashed(flow_run, message)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Prefect warns of a second worker for its type: this one is meant instead

    class OneProcessWorker(ProcessWorker):
        """Prefect's process worker; a due flow run waits for the end of its earlier process."""

        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            self.busy: set[UUID] = set()
            """Flow runs that have a process."""

        async def __aenter__(self) -> "OneProcessWorker":
            """Start the worker and its runner."""
            await super().__aenter__()
            self._runner._state_proposer = RetryAwareProposer(client=self._runner._client)
            return self

        async def _propose_crashed_state(self, flow_run: "FlowRun", message: str, client: Any = None) -> None:
            if not await is_scheduled(client or self.client, flow_run):
                await super()._propose_crashed_state(flow_run, message, client)

        async def run(self, flow_run: "FlowRun", *args: Any, **options: Any) -> "ProcessWorkerResult":
            """Run the process of a flow run to its end."""
            self.busy.add(flow_run.id)
            try:
                return await super().run(flow_run, *args, **options)
            finally:
                self.busy.discard(flow_run.id)

        async def _submit_scheduled_flow_runs(
            self, flow_run_response: "list[WorkerFlowRunResponse]"
        ) -> "list[FlowRun]":
            free = [entry for entry in flow_run_response if entry.flow_run.id not in self.busy]
            return await super()._submit_scheduled_flow_runs(free)


if __name__ == "__main__":
    app()
