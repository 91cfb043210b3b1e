"""Rules for `schedule:` of a recipe: due times that occur and changes that can be watched."""

import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError

from schemas.checks.recurrence import HORIZON, find_rrule_problem
from schemas.errors import Problem
from schemas.schedule import Schedule
from schemas.source.tree import Node, make_problem
from schemas.suggestions import suggest

MAX_CRON = 200
"""Characters of a cron expression."""
WATCHED = re.compile(r"(?:path|dvc|mlflow-dataset):.+|mlflow:[^@]+@(?!\d+$)[^@]+")
UNWATCHABLE = ("", "~", "/proc", "/sys", "/dev")
"""Folders that cannot be watched, because they always change or are too large."""
WAYS = ("cron", "interval", "rrule")
AMONG = "cron: `0 6 * * 1` (minute hour day month weekday), interval: `6h`, rrule: `FREQ=WEEKLY;BYDAY=MO;BYHOUR=6`"


def check_schedule(node: Node, schedule: Schedule, profiles: Collection[str]) -> Iterator[Problem]:
    """Yield the problems of a schedule; `node` is the value of `schedule:`."""
    ways = [way for way in WAYS if getattr(schedule, way) is not None]
    if not ways and not schedule.on_change:
        yield make_problem(
            node.where,
            "schedule",
            "the schedule has no time and no change to run on",
            f"give one of {AMONG}; or on_change",
        )
    for extra in ways[1:]:
        yield _make_problem(node, extra, f"`{ways[0]}` and `{extra}` both define due times", "keep one of them")
    if schedule.timezone not in available_timezones():
        nearest = suggest(schedule.timezone, sorted(available_timezones()), "IANA time zones such as Europe/Berlin")
        yield _make_problem(node, "timezone", f"no time zone `{schedule.timezone}`", nearest)
    else:
        yield from _check_times(node, schedule, ways)
    yield from _check_changes(node, schedule)
    if schedule.profile is not None and schedule.profile not in profiles:
        nearest = suggest(schedule.profile, list(profiles), "profiles")
        yield _make_problem(node, "profile", f"no profile `{schedule.profile}` in this recipe", nearest)


def _check_times(node: Node, schedule: Schedule, ways: list[str]) -> Iterator[Problem]:
    if schedule.cron is not None and (problem := find_cron_problem(schedule.cron)):
        yield _make_problem(
            node, "cron", problem, "five fields: minute hour day-of-month month day-of-week; `0 6 * * 1` is Monday 6:00"
        )
    if schedule.interval is not None and schedule.every is None:
        advice = "write a whole number and s, m, h, d or w: 30m, 6h, 1d"
        yield _make_problem(node, "interval", f"`{schedule.interval}` is not a duration", advice)
    if schedule.every is not None and schedule.every > HORIZON:
        yield _make_problem(node, "interval", f"`{schedule.interval}` is longer than ten years", "write a shorter one")
    if schedule.rrule is not None and (problem := find_rrule_problem(schedule.rrule)):
        yield _make_problem(
            node, "rrule", problem, "use the syntax of iCalendar: FREQ=WEEKLY;BYDAY=MO;BYHOUR=6;BYMINUTE=0;BYSECOND=0"
        )
    if ways == ["interval"] and schedule.timezone != "UTC":
        advice = "remove it; use cron for a time of the day"
        yield _make_problem(node, "timezone", "an interval does not depend on a time zone", advice)
    if not schedule.is_timed and node.get("catch_up"):
        yield _make_problem(node, "catch_up", "`catch_up` needs due times, but this schedule has none", "remove it")
    if schedule.catch_up == "all" and schedule.overlap == "cancel":
        advice = "write overlap: queue, or catch_up: latest"
        yield _make_problem(node, "catch_up", "missed runs would cancel one another (overlap: cancel)", advice)


def _check_changes(node: Node, schedule: Schedule) -> Iterator[Problem]:
    for index, source in enumerate(schedule.on_change):
        is_whole_system = source.startswith("path:") and source.removeprefix("path:").strip().rstrip("/") in UNWATCHABLE
        if WATCHED.fullmatch(source) and not is_whole_system:
            continue
        at = node.value["on_change"].value[index]
        advice = "write path:./data, dvc:data/x.parquet, mlflow-dataset:NAME or mlflow:NAME@alias"
        yield make_problem(at.mark, f"schedule.on_change.{index}", f"`{source}` cannot be watched", advice)


def find_missing_sources(node: Node, schedule: Schedule, folders: tuple[Path, ...]) -> Iterator[Problem]:
    """Yield the paths of `on_change` that are not there: a run starts when they appear, which is hardly meant."""
    for index, source in enumerate(schedule.on_change):
        path = Path(source.removeprefix("path:")).expanduser()
        if source.startswith("path:") and not any((folder / path).exists() for folder in folders):
            at = node.value["on_change"].value[index]
            advice = f"relative paths start at {', '.join(map(str, folders))}"
            yield make_problem(at.mark, f"schedule.on_change.{index}", f"{source}: nothing is there yet", advice)


def _make_problem(node: Node, key: str, message: str, advice: str) -> Problem:
    return make_problem((node.get(key) or node).mark, f"schedule.{key}", message, advice)


def find_cron_problem(text: str) -> str | None:
    """Return the problem with a cron expression, or None."""
    if len(text) > MAX_CRON:
        return f"{len(text)} characters are too many (at most {MAX_CRON})"
    if re.search(r"\dL", text):
        return f"`{text}`: Prefect does not support `L` after a weekday"
    if len(text.split()) != 5:
        return f"`{text}` has {len(text.split())} fields instead of five"
    try:
        next(CronSim(text, datetime.now(UTC)))
    except CronSimError as error:
        return f"`{text}` is not a cron expression: {error}"
    except StopIteration:
        return f"`{text}` is never due"
    return None
