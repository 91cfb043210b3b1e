"""The schedule of a recipe as Prefect schedules, and its next due times as text."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.server.schemas import schedules as prefects

from schemas.checks.recurrence import START
from schemas.recipe.load import Recipe
from schemas.schedule import Schedule

Times = prefects.CronSchedule | prefects.IntervalSchedule | prefects.RRuleSchedule
SLUG = "recipe"
"""Name of the schedule in its deployment: deploying again replaces it."""


def make_prefect_schedules(recipe: Recipe) -> list[DeploymentScheduleCreate]:
    """Return the schedules of a recipe's deployment: one, or none if it only waits for changes."""
    schedule = recipe.head.schedule
    times = make_times(schedule) if schedule else None
    if schedule is None or times is None:
        return []
    parameters = {"profile": schedule.profile} if schedule.profile else {}
    made = {"schedule": times.model_dump(mode="json"), "parameters": parameters, "slug": SLUG}
    return [DeploymentScheduleCreate.model_validate({**made, "active": schedule.active})]


def make_concurrency(recipe: Recipe) -> ConcurrencyOptions | None:
    """Return how the deployment's limit of one run treats a second; None where runs may overlap.

    The second always waits. Whether it then runs is decided when it starts (`flows.deployments.catch_up`): if Prefect
    cancelled it at once, catch-up runs after a downtime would cancel one another.
    """
    schedule = recipe.head.schedule
    if schedule is None or schedule.overlap == "cancel":
        return None
    return ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)


def make_yaml(recipe: Recipe) -> dict[str, object]:
    """Return the same as keys of a deployment in `prefect.yaml`; empty for a recipe without a schedule."""
    schedule, limits = recipe.head.schedule, make_concurrency(recipe)
    keys: dict[str, object] = {}
    for made in make_prefect_schedules(recipe):
        times = {k: v for k, v in made.schedule.model_dump(mode="json").items() if v is not None and k != "day_or"}
        profile = {"parameters": made.parameters} if made.parameters else {}
        keys["schedules"] = [{**times, "active": made.active, "slug": SLUG, **profile}]
    if schedule and limits:
        keys["concurrency_limit"] = {"limit": 1, "collision_strategy": limits.collision_strategy.value}
    return keys


def make_times(schedule: Schedule) -> Times | None:
    """Return the due times of a schedule as Prefect computes them; None without a schedule."""
    if schedule.cron:
        return prefects.CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
    if schedule.rrule:
        return prefects.RRuleSchedule(rrule=schedule.rrule, timezone=schedule.timezone)
    if schedule.every:
        anchor: Any = START.replace(tzinfo=UTC)  # a datetime; the stubs name a class of Prefect's own
        return prefects.IntervalSchedule(interval=schedule.every, anchor_date=anchor, timezone="UTC")
    return None


def list_due_times(
    schedule: Schedule, after: datetime, *, until: datetime | None = None, count: int = 1000
) -> list[datetime]:
    """Return due times later than `after`, at most `until`, in order; at most 1,000 (Prefect's limit)."""
    times: Any = make_times(schedule)
    if times is None:
        return []
    start = after + timedelta(microseconds=1)
    dates = asyncio.run(times.get_dates(n=min(count, 1000), start=start, end=until))
    return sorted(datetime.fromtimestamp(date.timestamp(), UTC) for date in dates)


def describe_schedule(schedule: Schedule, now: datetime | None = None) -> str:
    """Return when a recipe runs next: `0 6 * * 1: next Mon 23 Nov 2026 06:00 CET, then ...; when dvc:x changes`."""
    parts = []
    if schedule.is_timed:
        zone = ZoneInfo(schedule.timezone)
        dates = list_due_times(schedule, now or datetime.now(UTC), count=3)
        times = [f"{date.astimezone(zone):%a %d %b %Y %H:%M:%S %Z}".replace(":00 ", " ") for date in dates]
        text = schedule.cron or schedule.rrule or f"every {schedule.interval}"
        parts.append(f"{text}: next {times[0]}, then {', '.join(times[1:])}".removesuffix(", then ") if times else text)
    if schedule.on_change:
        parts.append(f"when {' or '.join(schedule.on_change)} changes")
    inactive = "" if schedule.active else " (not active)"
    return "; ".join(parts) + inactive
