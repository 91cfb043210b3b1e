"""Active runs, whose artifacts must not be cleared; the kernel releases their locks when they end, however they end.

A run holds `runs/<run>/lock` shared while it goes on, and takes it while nothing is being cleared.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from flows.processes.locks import lock_if_free
from lineage.layout import Layout

LOCK = "gc.lock"


@contextmanager
def mark_active(layout: Layout, run: str) -> Iterator[None]:
    """Mark a run as active inside; wait for a running clearing to end first."""
    layout.make_state()
    folder = layout.run(run)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as stream:
        with prevent_clearing(layout):
            fcntl.flock(stream, fcntl.LOCK_SH)
        yield


def is_active(layout: Layout, run: str) -> bool:
    """Return whether a process executes the run."""
    lock = layout.run(run) / "lock"
    if not lock.is_file():
        return False
    with lock_if_free(lock) as free:
        return not free


@contextmanager
def prevent_clearing(layout: Layout) -> Iterator[None]:
    """Prevent clearing inside; wait for a running clearing to end first."""
    with _hold_flock(layout, fcntl.LOCK_SH):
        yield


@contextmanager
def prevent_runs(layout: Layout) -> Iterator[None]:
    """Prevent runs from beginning inside; wait until nothing prevents clearing."""
    with _hold_flock(layout, fcntl.LOCK_EX):
        yield


@contextmanager
def _hold_flock(layout: Layout, how: int) -> Iterator[None]:
    layout.make_state()
    with (layout.state / LOCK).open("ab") as stream:
        fcntl.flock(stream, how)
        yield
