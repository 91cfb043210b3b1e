"""Link runs to flow runs: a retry in Prefect's UI continues the same run."""

import json
from collections.abc import Mapping
from typing import TypedDict

from flows.execution.run_log import list_runs
from lineage.layout import Layout
from schemas.atomic_write import write_text_atomically

FILE = "prefect.json"
"""File in a run's folder with the flow run that shows it, its deployment and the parameters of its form."""


def find_run_of(layout: Layout, flow_run: str, name: str) -> str | None:
    """Return the run that a flow run began before; most often it has the flow run's name."""
    for run in (name, *list_runs(layout)):
        if read_flow_run(layout, run).get("flow_run") == flow_run:
            return run
    return None


class FlowRunRecord(TypedDict, total=False):
    """The flow run that shows a run; empty without one."""

    flow_run: str
    deployment: str
    parameters: Mapping[str, object]
    """Values of the deployment's form."""


def write_flow_run(layout: Layout, run: str, record: FlowRunRecord) -> None:
    """Write, atomically, which flow run a run belongs to."""
    write_text_atomically(layout.run(run) / FILE, json.dumps(record, indent=1) + "\n")


def read_flow_run(layout: Layout, run: str) -> FlowRunRecord:
    """Return what was written of a run's flow run; empty without one."""
    try:
        return json.loads((layout.run(run) / FILE).read_text())
    except (OSError, ValueError):
        return {}
