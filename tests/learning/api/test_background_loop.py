"""A coroutine in a loop of its own thread: its result, its errors, and the end of both threads."""

import asyncio
import ctypes
import threading

import pytest

from learning.api.background_loop import run_coroutine


class Ended(BaseException):
    """What a step is ended with."""


async def yield_forever(started: threading.Event, closed: list[int]):
    """Keep the loop's queue full, so that an exception raised in its thread could lose a callback (5 of 300 times)."""

    async def yields(index: int):
        try:
            while True:
                await asyncio.sleep(0)
                started.set()
        finally:
            closed.append(index)

    await asyncio.gather(*(yields(index) for index in range(5)))


def raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))


def test_an_exception_in_the_calling_thread_cancels_every_task_and_is_raised():
    for _ in range(5):
        started, closed, raised = threading.Event(), [], []

        def call(started=started, closed=closed, raised=raised):
            try:
                run_coroutine(yield_forever(started, closed))
            except BaseException as error:
                raised.append(type(error))

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        assert started.wait(60)
        raise_in(thread, Ended)
        thread.join(60)
        assert not thread.is_alive()
        assert raised == [Ended]
        assert sorted(closed) == [0, 1, 2, 3, 4]


def test_results_and_errors_are_the_coroutines_own():
    caller = threading.get_ident()

    async def give(value):
        assert threading.get_ident() != caller
        if isinstance(value, BaseException):
            raise value
        return value

    assert run_coroutine(give(7)) == 7
    for error in (TimeoutError("slow"), ValueError("wrong"), Ended()):
        with pytest.raises(type(error)) as caught:
            run_coroutine(give(error))
        assert caught.value is error
