"""Trackers that receive the curves of a step while it runs."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from schemas.errors import PlanError
from schemas.trackers import Tracker

MODULES: Mapping[Tracker, str] = {"tensorboard": "tensorboardX", "trackio": "trackio", "wandb": "wandb"}
"""The library of a tracker; MLflow, which also holds the lineage of a run, is recorded by `tracking/record.py`."""


class CurveLine(NamedTuple):
    """Numbers of one optimiser step or iteration, by name; `time` is in seconds since the epoch."""

    at: int
    time: float
    values: dict[str, float]


class CurveSink(Protocol):
    """The record of one step of a run in a tracker.

    A new sink replaces what an earlier attempt of the step has left there: an attempt that resumes from a checkpoint
    reports all of its curve again, so no point is doubled and none is lost.
    """

    def write(self, lines: Sequence[CurveLine]) -> None:
        """Add lines, in the order of `at`; they are on disk when this returns."""

    def close(self, *, failed: bool) -> None:
        """End the record."""


def verify_trackers(trackers: Sequence[Tracker]) -> None:
    """Raise PlanError for a tracker whose library is not installed."""
    for tracker in trackers:
        module = MODULES.get(tracker)
        if module is not None and importlib.util.find_spec(module) is None:
            raise PlanError(
                f"track: {module} is not installed; install it with `pip install 'posttrain[{tracker}]'`, or take "
                f"`{tracker}` out of `track`"
            )
