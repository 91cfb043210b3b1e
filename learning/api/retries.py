"""Try again after failures that may pass: which these are, and how long to wait, as all clients of servers do."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from tenacity import RetryCallState, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_base

PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 that may pass."""
LONGEST_WAIT = 60.0
"""Limit of the seconds between two tries."""


class TransientFailure(Exception):
    """A failure that may pass; `wait` is what the server asks for, in seconds."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


def may_pass(status: int) -> bool:
    """Return whether a request that was answered with this status may succeed later."""
    return status in PASSING or status >= 500


def read_retry_after(response: Any) -> float:
    """Return the seconds that a response requests to wait, from Retry-After: a number or a date; 0 without either."""
    value = response.headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):  # no date, or one without a zone
            return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def retrying(max_retries: int, backoff: wait_base, longest: float = LONGEST_WAIT) -> dict[str, Any]:
    """Return arguments of tenacity's Retrying: after a TransientFailure it waits as `backoff` and the server ask.

    A server's request counts up to `longest` seconds. The last failure is raised.
    """
    return {
        "retry": retry_if_exception_type(TransientFailure),
        "stop": stop_after_attempt(max_retries + 1),
        "wait": _wait_as_asked(backoff, longest),
        "reraise": True,
    }


def _wait_as_asked(backoff: wait_base, longest: float) -> Callable[[RetryCallState], float]:
    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = min(error.wait, longest) if isinstance(error, TransientFailure) else 0.0
        return max(backoff(state), asked)

    return wait
