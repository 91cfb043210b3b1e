"""Due times, what becomes of missed ones, and how a recipe says it: pure functions."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
import yaml
from prefect.client.schemas.objects import ConcurrencyLimitStrategy

from flows.deployments.catch_up import DueRun, find_skip_reason, list_unscheduled
from flows.deployments.schedules import (
    describe_schedule,
    list_due_times,
    make_concurrency,
    make_prefect_schedules,
    make_yaml,
)
from schemas.checks.schedule import find_cron_problem
from schemas.schedule import Schedule

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2027, 1, 5, 12, tzinfo=UTC)


def recipe(**schedule):
    return SimpleNamespace(head=SimpleNamespace(schedule=Schedule(**schedule) if schedule else None))


def local(schedule, after, count):
    return [due.astimezone(BERLIN) for due in list_due_times(schedule, after, count=count)]


@pytest.mark.parametrize("options", [{"cron": "0 9 * * *"}, {"rrule": "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0"}])
@pytest.mark.parametrize("change", [datetime(2027, 3, 28, tzinfo=BERLIN), datetime(2027, 10, 31, tzinfo=BERLIN)])
def test_a_time_of_the_day_stays_that_time_when_clocks_change(options, change):
    dues = local(Schedule(timezone="Europe/Berlin", **options), change - timedelta(days=1), 4)
    assert [(due.hour, due.minute) for due in dues] == [(9, 0)] * 4
    assert [due.day for due in dues] == [(change + timedelta(days=i)).day for i in (-1, 0, 1, 2)]
    assert len({due.utcoffset() for due in dues}) == 2


def test_an_interval_is_elapsed_time_counted_from_a_fixed_moment():
    dues = list_due_times(Schedule(interval="7h"), datetime(2027, 3, 27, tzinfo=UTC), count=10)
    start = datetime(2020, 1, 1, tzinfo=UTC)
    assert {b - a for a, b in pairwise(dues)} == {timedelta(hours=7)}
    assert all((due - start) % timedelta(hours=7) == timedelta(0) for due in dues)


def test_due_times_are_later_than_asked_and_end_where_asked():
    hourly = Schedule(cron="0 * * * *")
    assert list_due_times(hourly, NOON, until=NOON + timedelta(hours=2)) == [NOON + timedelta(hours=i) for i in (1, 2)]
    assert list_due_times(hourly, NOON - timedelta(microseconds=1), count=1) == [NOON]
    assert list_due_times(Schedule(on_change=["path:x"]), NOON, count=3) == []


@pytest.mark.parametrize(
    "cron",
    [
        "0 6 * * 1",
        "*/5 * * * *",
        "0 0 29 2 *",
        "15 6-18/3 1,15 * *",
        "0 6 * * MON-FRI",
        "0 0 L * *",
        "0 0 * JAN *",
        "0 0 * * 5#2",
        "0 0 * * 7",
    ],
)
def test_every_cron_expression_that_is_accepted_comes_due_in_prefect_when_the_checker_says(cron):
    from cronsim import CronSim

    assert find_cron_problem(cron) is None
    checker = CronSim(cron, NOON)
    assert list_due_times(Schedule(cron=cron), NOON, count=3) == [next(checker) for _ in range(3)]


def test_prefect_gets_one_schedule_under_a_name_that_stays():
    (made,) = make_prefect_schedules(recipe(cron="0 6 * * 1", timezone="Europe/Berlin", profile="tiny", active=False))
    assert (made.schedule.cron, made.schedule.timezone) == ("0 6 * * 1", "Europe/Berlin")
    assert (made.slug, made.active, made.parameters) == ("recipe", False, {"profile": "tiny"})
    (every,) = make_prefect_schedules(recipe(interval="90m"))
    assert every.schedule.interval == timedelta(minutes=90)
    (rule,) = make_prefect_schedules(recipe(rrule="FREQ=DAILY", timezone="Asia/Tokyo"))
    assert rule.schedule.rrule.splitlines() == ["DTSTART:20200101T000000", "FREQ=DAILY"]  # which Prefect writes out
    assert rule.schedule.timezone == "Asia/Tokyo"
    assert make_prefect_schedules(recipe(on_change=["path:x"])) == make_prefect_schedules(recipe()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"cron": "0 6 * * 1", "timezone": "Europe/Berlin", "profile": "tiny"},
        {"interval": "6h", "active": False},
        {"rrule": "FREQ=DAILY;BYHOUR=6", "timezone": "Asia/Tokyo", "overlap": "cancel"},
    ],
)
def test_prefect_reads_the_same_schedule_from_prefect_yaml(options):
    from prefect.cli.deploy._schedules import _schedule_config_to_deployment_schedule
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    written = yaml.safe_load(yaml.safe_dump(make_yaml(recipe(**options))))
    (config,) = written["schedules"]
    read = DeploymentScheduleCreate.model_validate(_schedule_config_to_deployment_schedule(config))
    assert [read] == make_prefect_schedules(recipe(**options))
    limit = None if options.get("overlap") == "cancel" else {"limit": 1, "collision_strategy": "ENQUEUE"}
    assert written.get("concurrency_limit") == limit
    assert make_yaml(recipe()) == {}


def test_runs_wait_for_one_another_unless_the_later_cancels_the_earlier():
    strategies = {o: make_concurrency(recipe(interval="1h", overlap=o)) for o in ("skip", "queue", "cancel")}
    assert strategies["cancel"] is None
    assert {strategies[o].collision_strategy for o in ("skip", "queue")} == {ConcurrencyLimitStrategy.ENQUEUE}
    assert make_concurrency(recipe()) is None


def occasion(late, apart=3600.0, later=(), overlaps=None):
    """Due at noon and tried `late` seconds after that."""
    following = NOON + timedelta(seconds=apart) if apart else None
    return DueRun(NOON, NOON + timedelta(seconds=late), following, later, overlaps)


@pytest.mark.parametrize(
    ("late", "apart", "missed"),
    [(-10, 3600, False), (59, 3600, False), (61, 3600, True), (14, 30, False), (16, 30, True), (61, None, True)],
)
def test_missed_is_what_nothing_tried_to_start_for_a_minute_or_half_the_time_to_the_next(late, apart, missed):
    assert occasion(late, apart).is_missed is missed


NEXT = (NOON + timedelta(hours=1),)


@pytest.mark.parametrize(
    ("policy", "late", "later", "reason"),
    [
        ("skip", 5000, NEXT, "Skipped: missed while down (catch_up: skip)"),
        ("skip", 5000, (), "Skipped: missed while down (catch_up: skip)"),
        ("skip", 5, NEXT, None),
        ("latest", 5000, NEXT, "Skipped: missed while down (catch_up: latest)"),
        ("latest", 5000, (), None),
        ("latest", 5, NEXT, None),
        ("all", 5000, NEXT, None),
    ],
)
def test_of_missed_due_times_none_the_latest_or_all_run(policy, late, later, reason):
    assert find_skip_reason(occasion(late, later=later), Schedule(interval="1h", catch_up=policy)) == reason


@pytest.mark.parametrize(
    ("overlap", "late", "reason"),
    [
        ("skip", 5, "Skipped: r1 was still running (overlap: skip)"),
        ("queue", 5, None),
        ("cancel", 5, None),
        ("skip", 5000, None),
    ],
)
def test_a_due_time_during_a_run_is_skipped_only_where_the_recipe_says_so(overlap, late, reason):
    assert find_skip_reason(occasion(late, overlaps="r1"), Schedule(interval="1h", overlap=overlap)) == reason


def test_missed_due_times_since_the_first_scheduled_one_are_listed():
    daily = Schedule(cron="0 12 * * *")
    known = [NOON + timedelta(days=i) for i in (2, 0, 1)]
    now = NOON + timedelta(days=6, hours=1)
    assert list_unscheduled(daily, now, known) == [NOON + timedelta(days=i) for i in (3, 4, 5, 6)]
    assert list_unscheduled(daily, now, [*known, *list_unscheduled(daily, now, known)]) == []
    assert list_unscheduled(daily, now, []) == []


def test_words_say_when_in_the_zone_of_the_recipe():
    schedule = Schedule(cron="0 6 * * 1", timezone="Europe/Berlin", on_change=["path:./data", "mlflow:tutor@champion"])
    assert describe_schedule(schedule, datetime(2027, 3, 20, tzinfo=UTC)) == (
        "0 6 * * 1: next Mon 22 Mar 2027 06:00 CET, then Mon 29 Mar 2027 06:00 CEST, Mon 05 Apr 2027 06:00 CEST; "
        "when path:./data or mlflow:tutor@champion changes"
    )
    assert describe_schedule(Schedule(on_change=["dvc:x"], active=False)) == "when dvc:x changes (not active)"
    once = f"RDATE:{datetime(2028, 1, 1, 5):%Y%m%dT%H%M%S}"
    assert describe_schedule(Schedule(rrule=once), NOON) == f"{once}: next Sat 01 Jan 2028 05:00 UTC"


def test_prefect_itself_computes_the_same_due_times_on_its_server():
    from prefect.server.schemas.schedules import CronSchedule

    (made,) = make_prefect_schedules(recipe(cron="30 2 * * *", timezone="Europe/Berlin"))
    theirs = CronSchedule.model_validate(made.schedule.model_dump())
    start = datetime(2027, 3, 26, 12, tzinfo=UTC)
    dates = asyncio.run(theirs.get_dates(4, start))
    schedule = Schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    assert [d.timestamp() for d in dates] == [d.timestamp() for d in list_due_times(schedule, start, count=4)]
