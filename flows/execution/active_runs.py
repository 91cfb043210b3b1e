"""Which runs are under way, so that what they use is not cleared away; the kernel gives locks back, however one ends.

A run holds `runs/<run>/lock` shared for as long as it goes on, and takes it while nothing is being cleared.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from flows.processes.locks import unused
from lineage.layout import Layout

LOCK = "gc.lock"


@contextmanager
def alive(layout: Layout, run: str) -> Iterator[None]:
    """Be a run that is under way; waits for a clearing to end before it begins."""
    layout.make_state()
    folder = layout.run(run)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as stream:
        with undisturbed(layout):
            fcntl.flock(stream, fcntl.LOCK_SH)
        yield


def is_alive(layout: Layout, run: str) -> bool:
    """Whether a process carries the run out."""
    lock = layout.run(run) / "lock"
    if not lock.is_file():
        return False
    with unused(lock) as free:
        return not free


@contextmanager
def undisturbed(layout: Layout) -> Iterator[None]:
    """Nothing is cleared away inside; waits for a clearing to end."""
    with _held(layout, fcntl.LOCK_SH):
        yield


@contextmanager
def clearing(layout: Layout) -> Iterator[None]:
    """No run begins inside; waits until nothing else is undisturbed."""
    with _held(layout, fcntl.LOCK_EX):
        yield


@contextmanager
def _held(layout: Layout, how: int) -> Iterator[None]:
    layout.make_state()
    with (layout.state / LOCK).open("ab") as stream:
        fcntl.flock(stream, how)
        yield
