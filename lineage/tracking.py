"""Manifests → MLflow: a parent run per run, a child per step, datasets and models by reference, never by copy.

Everything is found again by its tags (`posttrain.run`, `posttrain.step`, `posttrain.key`), so a projection can be
repeated: what is there stays, what a killed projection left half done is made anew. MLflow takes seconds to import
and to open its store: call from a thread or process of its own.
"""

import logging
import os
from collections.abc import Mapping

from lineage.layout import Layout
from lineage.records import read_record
from schemas.plan import Plan


def project_run(layout: Layout, run: str, plan: Plan, states: Mapping[str, str]) -> str:
    """Bring MLflow up to a run: `states` maps steps to how they stand. Returns the id of the parent run in MLflow."""
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")  # read while mlflow is imported
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from lineage.tracker import FINISHED, Tracker

    tracker = Tracker(layout, plan.recipe)
    parent = tracker.parent(run, plan, states)
    for step in plan.steps:
        state = states.get(step.name, "queued")
        record = read_record(layout.artifact(step.kind, step.key)) if state in FINISHED else None
        tracker.child(parent, run, step, state, record)
    tracker.end_parent(parent, plan, states, layout)
    return parent
