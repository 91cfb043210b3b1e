"""The program of the worker: `prefect worker start`, with flow runs that have one process at a time.

Prefect's own worker ends with an error, and all its flow runs with it, if it must start a flow run whose process still
runs: one that was suspended or cancelled, and resumed or retried at once. This one starts it when that process ended.
"""

import warnings
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.cli import app
from prefect.workers.process import ProcessWorker

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import WorkerFlowRunResponse
    from prefect.workers.process import ProcessWorkerResult

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Prefect warns of a second worker for its type: this one is meant instead

    class OneProcessWorker(ProcessWorker):
        """Prefect's process worker; a due flow run waits for the end of its earlier process."""

        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            self.busy: set[UUID] = set()
            """Flow runs that have a process."""

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
