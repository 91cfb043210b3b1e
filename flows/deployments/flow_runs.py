"""Which run a flow run of a deployment carries out: a retry in Prefect's UI goes on with the same one."""

import json
from typing import Any

from flows.execution.run_log import list_runs
from lineage.layout import Layout
from schemas.atomic_write import write_text_atomically

FILE = "prefect.json"
"""In a run's folder: the flow run that shows it, its deployment and the parameters of its form."""


def find_run_of(layout: Layout, flow_run: str, name: str) -> str | None:
    """The run that a flow run began before; its name is most often that of the run."""
    for run in (name, *list_runs(layout)):
        if read_flow_run(layout, run).get("flow_run") == flow_run:
            return run
    return None


def write_flow_run(layout: Layout, run: str, **facts: Any) -> None:
    """Keep, in one write, which flow run a run belongs to."""
    write_text_atomically(layout.run(run) / FILE, json.dumps(facts, indent=1) + "\n")


def read_flow_run(layout: Layout, run: str) -> dict[str, Any]:
    """What was kept of a run's flow run; empty where it has none."""
    try:
        return json.loads((layout.run(run) / FILE).read_text())
    except (OSError, ValueError):
        return {}
