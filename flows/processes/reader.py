"""Survive the death of the process that reads this process's output."""

import os
import select
import stat
import threading


def survive_closed_output() -> None:
    """Redirect stdout and stderr to /dev/null as soon as their pipe has no reader.

    A flow run's output goes through its worker. Without this, the next log line after the worker's death would end the
    run.
    """
    pipes = [number for number in (1, 2) if stat.S_ISFIFO(os.fstat(number).st_mode)]
    if pipes:
        threading.Thread(target=_redirect_when_closed, args=(pipes,), name="reader", daemon=True).start()


def _redirect_when_closed(pipes: list[int]) -> None:
    while pipes:
        watched = select.poll()
        for number in pipes:
            watched.register(number, 0)  # the loss of the reader is told without being asked for
        for number, _ in watched.poll():
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
            pipes.remove(number)
