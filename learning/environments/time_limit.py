"""A limit on the time of calls into code that may block."""

import threading
from collections.abc import Callable
from typing import Any


class StepTimeout(Exception):
    """A call did not end within its time."""


def call_within(seconds: float, function: Callable[[], Any]) -> Any:
    """Return the result of a call, or raise its exception. Raise StepTimeout if it takes longer than `seconds`.

    Python cannot end a thread: a call that blocks forever keeps its own until the process ends.
    """
    ended: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            ended.append((function(), None))
        except BaseException as error:
            ended.append((None, error))

    thread = threading.Thread(target=work, daemon=True, name="limited call")
    thread.start()
    thread.join(seconds)
    if not ended:
        raise StepTimeout(f"no answer within {seconds:g} seconds")
    result, error = ended[0]
    if error is not None:
        raise error
    return result
