"""A run goes on when Prefect's server is gone for good: Prefect shows a run, it does not make it."""

import sys
from collections.abc import Callable

import httpx

from flows.execution.execute import Execution, execute_plan
from flows.prefect_runs.pipeline import run_flow

GONE = (
    "Prefect's server does not answer any more ({error}): its UI shows this run as it stood then.\n"
    "    Nothing else is lost; the run goes on without it"
)


def run_flow_with_fallback(execution: Execution, ended: Callable[[], None]) -> None:
    """Carry out an execution as a flow run; when the server stays away, do what is left without it.

    `ended` is called once.
    """
    told, reporter = False, execution.reporter

    def once() -> None:
        nonlocal told
        if not told:
            told = True
            ended()

    try:
        run_flow(execution, once)
    except httpx.HTTPError as error:
        print(GONE.format(error=str(error) or type(error).__name__), file=sys.stderr)
        execution.reporter = reporter  # without the bars in Prefect's UI
        execute_plan(execution)
        once()
