"""Run a coroutine in the event loop of another thread, so that the calling thread can be interrupted at any moment."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")

BEAT = 0.1
"""Seconds between two moments at which either thread notices that it is to stop."""


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine; an exception raised in the calling thread meanwhile cancels the coroutine.

    A signal handler or another thread may raise an exception between any two instructions of the calling thread. In a
    thread that runs an event loop it could strike after a callback left the queue and before it ran: the task behind it
    would never go on, and the loop would wait for it forever. The calling thread therefore only waits.
    """
    outcome: Future[T] = Future()
    stopped = threading.Event()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(_run_until_stopped(coroutine, stopped)))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=copy_context().run, args=(run,), daemon=True)
    try:
        thread.start()
        while not outcome.done():
            wait([outcome], BEAT)
        return outcome.result()
    finally:
        stopped.set()
        if thread.is_alive():
            thread.join()


async def _run_until_stopped(coroutine: Coroutine[Any, Any, T], stopped: threading.Event) -> T:
    task = asyncio.ensure_future(coroutine)
    while not task.done():
        await asyncio.wait([task], timeout=BEAT)
        if stopped.is_set():
            task.cancel()
    return task.result()
