"""`schedule:` of a recipe: when it runs by itself.

`schemas.checks.schedule` checks it, and `flows.deployments.schedules` carries it out.
"""

import re
from datetime import timedelta
from typing import Literal

from pydantic import Field

from schemas.base import Schema

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
INTERVAL = re.compile(r"([1-9][0-9]{0,5})([smhdw])")


class Schedule(Schema):
    """When the deployed recipe runs by itself."""

    cron: str | None = None
    """Five fields: minute, hour, day of month, month, day of week."""
    interval: str | None = None
    """Time from one run to the next, counted from 2020-01-01 00:00 UTC: `30m`, `6h`, `1d`."""
    rrule: str | None = None
    """A rule of iCalendar (RFC 5545): `FREQ=WEEKLY;BYDAY=MO,TH;BYHOUR=6`."""
    on_change: list[str] = []
    """Run when one of these changes: `path:`, `dvc:`, `mlflow-dataset:NAME`, `mlflow:NAME@alias`."""
    timezone: str = "UTC"
    """IANA name of the zone in which `cron` and `rrule` are meant."""
    overlap: Literal["skip", "queue", "cancel"] = "skip"
    """A due time while a run goes on is skipped, waits for that run, or cancels it and starts."""
    catch_up: Literal["skip", "latest", "all"] = "latest"
    """Of the due times missed while the server was down, none is made up for, the latest, or each in order."""
    active: bool = True
    """Whether it is in force; a deployment of an inactive schedule runs by hand only."""
    profile: str | None = Field(default=None)
    """Profile of the runs that the schedule starts."""

    @property
    def every(self) -> timedelta | None:
        """The interval as a time, None when there is none."""
        match = INTERVAL.fullmatch(self.interval or "")
        return timedelta(**{UNITS[match[2]]: int(match[1])}) if match else None

    @property
    def is_timed(self) -> bool:
        """Whether it has due times, and not only changes that it waits for."""
        return any((self.cron, self.interval, self.rrule))
