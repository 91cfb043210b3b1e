"""Rules are judged as dateutil would judge them, had it the time."""

from datetime import UTC, datetime

import pytest
from dateutil.rrule import rrulestr

from schemas.checks.recurrence import SHIFT, START, find_rrule_problem

NEVER = "BYMONTH=2;BYMONTHDAY=30"


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=DAILY",
        "FREQ=HOURLY",
        "FREQ=MINUTELY;INTERVAL=30",
        "FREQ=WEEKLY;BYDAY=MO;BYHOUR=6",
        "FREQ=MONTHLY;BYDAY=1MO;BYHOUR=6;BYMINUTE=0;BYSECOND=0",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",
        "DTSTART:20210301T000000 RRULE:FREQ=MONTHLY;INTERVAL=5",
        "RDATE:21000101T000000",
        "freq=daily",
        "FREQ=DAILY;UNTIL=21000101T000000",
        "FREQ=DAILY;COUNT=40000",
        "FREQ=YEARLY;BYDAY=MO;BYSETPOS=-1",
    ],
)
def test_rules_that_come_due_are_accepted(rule):
    assert find_rrule_problem(rule) is None


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("FREQ=SECONDLY;BYMONTHDAY=31;BYSETPOS=366", "more often than"),
        ("FREQ=MINUTELY", "more often than"),
        *((f"FREQ={freq};{NEVER}", "is never due again") for freq in ("HOURLY", "DAILY", "WEEKLY", "MONTHLY")),
        (f"FREQ=MINUTELY;INTERVAL=30;{NEVER}", "is never due again"),
        ("FREQ=DAILY;BYSETPOS=2", "never"),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=TU", "never"),
        ("FREQ=DAILY;COUNT=3", "never"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("FREQ=DAILY;UNTIL=20200201T000000", "never"),
        ("RRULE:FREQ=DAILY EXRULE:FREQ=DAILY", "more than one rule"),
        ("DTSTART:00010101T000000 RRULE:FREQ=DAILY", "starts on"),
        (f"RDATE:20990101T000000 RRULE:FREQ=DAILY;{NEVER}", "never"),
        ("FREQ=DAILY;BYHOUR=²", "not a recurrence rule"),
        ("FREQ=YEARLY;BYEASTER=400", "not a recurrence rule"),
        ("", "no"),
    ],
)
def test_others_are_refused_with_the_reason(rule, message):
    assert message in find_rrule_problem(rule)


@pytest.mark.parametrize(
    "rule", ["FREQ=DAILY;INTERVAL=3;BYDAY=SU", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", "FREQ=WEEKLY;INTERVAL=5"]
)
def test_the_calendar_is_the_same_after_the_shift(rule):
    now = datetime(2027, 5, 5)
    later = rrulestr(rule, dtstart=START.replace(year=START.year + SHIFT)).after(now.replace(year=now.year + SHIFT))
    assert later.replace(year=later.year - SHIFT) == rrulestr(rule, dtstart=START).after(now)
    assert datetime.now(UTC).year + SHIFT < 9999
