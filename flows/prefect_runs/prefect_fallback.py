"""Continue a run when Prefect's server is gone for good: Prefect shows a run, it does not execute it."""

import sys
from collections.abc import Callable

import httpx

from flows.execution.execute import Execution, execute_plan
from flows.prefect_runs.pipeline import run_flow

GONE = (
    "Prefect's server no longer answers ({error}): its UI shows the run as of now.\n"
    "    Nothing else is lost; the run continues without it"
)


def run_flow_with_fallback(execution: Execution, ended: Callable[[], None]) -> None:
    """Perform an execution as a flow run; if the server stays away, finish it without Prefect.

    `ended` is called once.
    """
    has_ended, reporter = False, execution.reporter

    def once() -> None:
        nonlocal has_ended
        if not has_ended:
            has_ended = True
            ended()

    try:
        run_flow(execution, once)
    except httpx.HTTPError as error:
        print(GONE.format(error=str(error) or type(error).__name__), file=sys.stderr)
        execution.reporter = reporter  # without the bars in Prefect's UI
        execute_plan(execution)
        once()
