"""Whoever reads what this process prints may die: then nobody hears it any more, and that is all."""

import os
import select
import stat
import threading


def survive_closed_output() -> None:
    """Send standard output and error nowhere as soon as the pipe that they are has lost its reader.

    A flow run's output goes through its worker. When that is killed, the next line of a log would end the flow run.
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
