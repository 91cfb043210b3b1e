"""Recurrence rules of iCalendar, checked in bounded time.

`dateutil` finds the next due time of a rule by iterating over its periods from the first one up to the year 9999. For
a rule of every second, or one that is never due, that takes minutes. Here rules that are due too often are refused by
their text, and the others are evaluated 7,600 years later, where few periods are left. The calendar repeats every 400
years, including the day of the week, so the result is the same.
"""

import math
import re
from collections.abc import Iterable, Iterator
from datetime import MAXYEAR, UTC, datetime, timedelta
from itertools import islice

START = datetime(2020, 1, 1)
"""Start of intervals and of rules without a DTSTART; no rule may start earlier."""
HORIZON = timedelta(days=3653)
"""Ten years: how far ahead a rule may start, and how long an interval may be."""
MAX_TEXT = 4_000
MAX_RULE = 500
MAX_TIMES = 100
"""Largest number of times of the day in a rule."""
MAX_TIMES_OF_HOUR = 4
"""Largest number of times of the hour in an hourly or minutely rule."""
MAX_POSITIONS = 10
MAX_DUE = 300_000
"""Largest number of due times from the start of a rule until now."""
MINUTES = 30
"""Shortest period of a minutely rule, in minutes."""
SHIFT = 7_600
"""Years, a multiple of 400."""
_MOMENT = re.compile(r"\d{8}(T\d{6})?", re.ASCII)
_NUMBER = re.compile(r"[1-9][0-9]{0,4}")


def find_rrule_problem(text: str) -> str | None:
    """Return the problem with a recurrence rule, or None if it is due again."""
    if re.search(r"DTSTART[^\n]*(?:TZID|Z\s*$)|UNTIL=\w+Z", text, re.MULTILINE):
        return "a rule has no time zone of its own; write its times without a zone and set `timezone`"
    if len(text) > MAX_TEXT:
        return f"a rule of {len(text)} characters is too long (at most {MAX_TEXT})"
    lines = text.upper().split()
    rules = [line.removeprefix("RRULE:") for line in lines if not re.match(r"(DTSTART|RDATE|EXDATE|EXRULE)\b", line)]
    if len(rules) > 1 or any(line.startswith("EXRULE") for line in lines):
        return f"`{text}` has more than one rule; give one rule, with DTSTART, RDATE or EXDATE if needed"
    parts = {key: value for key, _, value in (part.partition("=") for part in rules[0].split(";"))} if rules else {}
    if wrong := _find_excess(parts, rules):
        return f"`{text}` {wrong}"
    try:
        return _find_due_problem(text, lines, parts)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        return f"`{text}` is not a recurrence rule: {error}"


def _find_excess(parts: dict[str, str], rules: list[str]) -> str | None:
    """Return why a rule is too expensive to evaluate, or None."""
    how, interval = parts.get("FREQ"), parts.get("INTERVAL", "1")
    if any(len(rule) > MAX_RULE for rule in rules):
        return f"is too long (at most {MAX_RULE} characters)"
    if not _NUMBER.fullmatch(interval):
        return "is not a recurrence rule: INTERVAL must be a whole number from 1 to 99999"
    if how == "SECONDLY" or (how == "MINUTELY" and int(interval) < MINUTES):
        return f"is due more often than every {MINUTES} minutes: write `interval: 5m`"
    if how in ("MINUTELY", "HOURLY") and "BYSETPOS" in parts:
        return "counts positions within an hour (BYSETPOS): name the minutes with BYMINUTE"
    if len(parts.get("BYSETPOS", "").split(",")) > MAX_POSITIONS:
        return f"names more than {MAX_POSITIONS} positions (BYSETPOS)"
    times = [len(parts.get(key, "").split(",")) for key in ("BYHOUR", "BYMINUTE", "BYSECOND")]
    if how in ("MINUTELY", "HOURLY") and math.prod(times[1:]) > MAX_TIMES_OF_HOUR:
        return f"names more than {MAX_TIMES_OF_HOUR} times of the hour: write `FREQ=DAILY` with BYHOUR"
    return f"names more than {MAX_TIMES} times of the day" if math.prod(times) > MAX_TIMES else None


def _find_due_problem(text: str, lines: list[str], parts: dict[str, str]) -> str | None:
    now = datetime.now(UTC).replace(tzinfo=None)
    first = next((line.rpartition(":")[2] for line in lines if line.startswith("DTSTART")), None)
    start = START if first is None else _parse_moment(first)
    if not START <= start <= now + HORIZON:
        return f"`{text}` starts on {start:%Y-%m-%d}; the start must be between {START:%Y-%m-%d} and ten years from now"
    from dateutil.rrule import rrulestr  # takes 8 ms, and few recipes have a rule

    rrulestr(text, dtstart=START)  # raises if a part cannot be parsed
    except_on = set(_parse_dates("EXDATE", lines))
    due = any(now < date and date not in except_on for date in _parse_dates("RDATE", lines))
    if not parts:
        return None if due else f"`{text}` is never due again"
    never = {_shift(date) for date in except_on if date.year + SHIFT <= MAXYEAR}
    count = 0
    for date in islice(_make_shifted_rule(parts, start), MAX_DUE):
        count += 1
        if date > _shift(now) and date not in never:
            return None
    return f"`{text}` {'is due too often' if count == MAX_DUE else 'is never due again'}"


def _make_shifted_rule(parts: dict[str, str], start: datetime) -> Iterable[datetime]:
    """Return the due times of the rule, shifted by `SHIFT` years."""
    from dateutil.rrule import rrulestr  # as above

    until = _parse_moment(parts["UNTIL"]) if "UNTIL" in parts else None
    fields = {key: value for key, value in parts.items() if key != "UNTIL"}
    if until is not None and until.year + SHIFT <= MAXYEAR:
        fields["UNTIL"] = f"{_shift(until):%Y%m%dT%H%M%S}"
    return rrulestr(";".join(f"{key}={value}" for key, value in fields.items()), dtstart=_shift(start))


def _shift(moment: datetime) -> datetime:
    return moment.replace(year=moment.year + SHIFT)


def _parse_moment(text: str) -> datetime:
    """Return the time that a date or date-time of iCalendar denotes. Raise ValueError."""
    if not _MOMENT.fullmatch(text):
        raise ValueError(f"{text[:20]} is not a time such as 20270104T060000")
    return datetime.strptime(text, "%Y%m%dT%H%M%S" if "T" in text else "%Y%m%d")


def _parse_dates(name: str, lines: list[str]) -> Iterator[datetime]:
    for line in lines:
        if line.startswith(name):
            yield from map(_parse_moment, line.rpartition(":")[2].split(","))
