"""`schedule:` of a recipe: when its deployment starts runs.

`schemas.checks.schedule` validates it, and `flows.deployments.schedules` creates it in Prefect.
"""

import re
from datetime import timedelta
from typing import Literal

from pydantic import Field

from schemas.base import Schema

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
INTERVAL = re.compile(r"([1-9][0-9]{0,5})([smhdw])")


class Schedule(Schema):
    """When the deployment of a recipe starts runs."""

    cron: str | None = None
    """Cron expression with five fields: minute, hour, day of month, month, day of week."""
    interval: str | None = None
    """Time between runs, counted from 2020-01-01 00:00 UTC: `30m`, `6h`, `1d`."""
    rrule: str | None = None
    """Recurrence rule of iCalendar (RFC 5545): `FREQ=WEEKLY;BYDAY=MO,TH;BYHOUR=6`."""
    on_change: list[str] = []
    """Sources whose changes start a run: `path:`, `dvc:`, `mlflow-dataset:NAME`, `mlflow:NAME@alias`."""
    timezone: str = "UTC"
    """IANA name of the time zone of `cron` and `rrule`."""
    overlap: Literal["skip", "queue", "cancel"] = "skip"
    """What happens at a due time while a run is active: `skip` it, `queue` the new run, or `cancel` the active one."""
    catch_up: Literal["skip", "latest", "all"] = "latest"
    """Which due times missed while the server was down are run afterwards: none, the latest, or all in order."""
    active: bool = True
    """Whether the schedule starts runs; false: runs of the deployment are started by hand only."""
    profile: str | None = Field(default=None)
    """Profile of the runs that the schedule starts."""

    @property
    def every(self) -> timedelta | None:
        """The interval as a timedelta, or None without an interval."""
        match = INTERVAL.fullmatch(self.interval or "")
        return timedelta(**{UNITS[match[2]]: int(match[1])}) if match else None

    @property
    def is_timed(self) -> bool:
        """Whether it has due times, given by `cron`, `interval` or `rrule`."""
        return any((self.cron, self.interval, self.rrule))
