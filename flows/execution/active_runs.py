"""Which runs are under way, so that what they use is not cleared away; the kernel gives locks back, however one ends.

A run holds `runs/<run>/lock` shared for as long as it goes on, and takes it while nothing is being cleared.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from flows.processes.locks import lock_if_free
from lineage.layout import Layout

LOCK = "gc.lock"


@contextmanager
def mark_active(layout: Layout, run: str) -> Iterator[None]:
    """Be a run that is under way; waits for a clearing to end before it begins."""
    layout.make_state()
    folder = layout.run(run)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as stream:
        with prevent_clearing(layout):
            fcntl.flock(stream, fcntl.LOCK_SH)
        yield


def is_active(layout: Layout, run: str) -> bool:
    """Whether a process carries the run out."""
    lock = layout.run(run) / "lock"
    if not lock.is_file():
        return False
    with lock_if_free(lock) as free:
        return not free


@contextmanager
def prevent_clearing(layout: Layout) -> Iterator[None]:
    """Nothing is cleared away inside; waits for a clearing to end."""
    with _hold_flock(layout, fcntl.LOCK_SH):
        yield


@contextmanager
def prevent_runs(layout: Layout) -> Iterator[None]:
    """No run begins inside; waits until nothing else is undisturbed."""
    with _hold_flock(layout, fcntl.LOCK_EX):
        yield


@contextmanager
def _hold_flock(layout: Layout, how: int) -> Iterator[None]:
    layout.make_state()
    with (layout.state / LOCK).open("ab") as stream:
        fcntl.flock(stream, how)
        yield
