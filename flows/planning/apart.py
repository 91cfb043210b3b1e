"""Calls of the user's own code in a process of their own, so that code which ends its process is named."""

import multiprocessing
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from schemas.errors import PosttrainError, StepError

T = TypeVar("T")
GRACE = 10.0
"""Seconds that a child process has beyond its limit, to report by itself that its code did not return."""


def call_apart(call: Callable[[], T], what: str, limit: float | None) -> T:
    """Return what a call returns in a forked process. Raise its error, and StepError if its process ends or hangs.

    Where a fork is unsafe, because other threads run or CUDA is in use, the call is made in this process.
    """
    if threading.active_count() > 1 or _uses_cuda():
        return call()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(call, sender))
    process.start()
    sender.close()
    try:
        if not wait([receiver, process.sentinel], None if limit is None else limit + GRACE):
            raise StepError(
                f"{what} did not return, and Python could not stop it; look for compiled code that it calls"
            )
        value, error = receiver.recv()
    except EOFError:  # nothing was sent
        process.join()
        raise StepError(f"{what} {_describe_end(process.exitcode)}") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if error is not None:
        raise error
    return value


def _uses_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _send_result(call: Callable[[], object], sender: Connection) -> None:
    """Send the value or the error of a call, in the child process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent process ends this one
        signal.signal(number, signal.SIG_DFL)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # the threads of the parent process do not exist here
    try:
        sender.send((call(), None))
    except PosttrainError as error:
        sender.send((None, error))
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def _describe_end(code: int | None) -> str:
    """Return how a process ended by its exit code, and what to look for."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"crashed the process that called it ({name}); look for compiled code that it calls, or a lack of memory"
    return f"ended the process that called it (exit code {code}); it must return: look for os._exit"
