"""Which failures are tried again, and after how long."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
from tenacity import RetryCallState, Retrying
from tenacity.wait import wait_exponential

from learning.api.retries import TransientFailure, may_pass, read_retry_after, retrying


def test_statuses_that_may_pass():
    assert [status for status in range(200, 600) if may_pass(status)] == [408, 409, 425, 429, *range(500, 600)]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        *((value, 0.0) for value in ("-1", "nan", "inf", "soon", "")),
        *((value, 0.0) for value in ("Wed, 21 Oct 2015 07:28:00 GMT", "21 Oct 2015 07:28:00")),
    ],
)
def test_what_a_server_asks_for(value, seconds):
    assert read_retry_after(SimpleNamespace(headers={"retry-after": value})) == seconds


def test_a_date_is_so_far_away():
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert 80 < read_retry_after(SimpleNamespace(headers={"retry-after": at})) <= 90


def test_waits_are_the_longer_of_the_backoff_and_what_is_asked_up_to_the_limit():
    asked = iter([0.0, 7.0, 1000.0, 0.0])
    waits = []

    def fail():
        raise TransientFailure("down", next(asked))

    tries = Retrying(**retrying(3, wait_exponential(multiplier=2), 60.0), sleep=waits.append)
    with pytest.raises(TransientFailure, match="down"):
        tries(fail)
    assert waits == [2.0, 7.0, 60.0]  # the backoff alone: 2, 4, 8
    assert next(asked, None) is None


def test_another_failure_is_final():
    tries = Retrying(**retrying(3, wait_exponential(multiplier=2)), sleep=lambda seconds: pytest.fail("it waited"))
    with pytest.raises(ZeroDivisionError):
        tries(lambda: 1 // 0)
    state = RetryCallState(tries, None, (), {})
    assert retrying(3, wait_exponential(multiplier=2))["wait"](state) == 2.0
