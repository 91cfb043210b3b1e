"""One process at a time does a step; the kernel gives the lock back when its holder dies, however it dies."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hold_lock(folder: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold `folder/lock` exclusively; `on_wait` is called once when another process has it.

    The folder may be removed by the holder: who waited for the removed file looks again.
    """
    handle = _acquire(folder, on_wait)
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def try_lock(folder: Path) -> Iterator[bool]:
    """Hold `folder/lock` where no other process has it; whether it is held."""

    def give_up() -> None:
        raise BlockingIOError

    try:
        handle = _acquire(folder, give_up)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        os.close(handle)


def _acquire(folder: Path, on_wait: Callable[[], None]) -> int:
    waited = False
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (FileNotFoundError, FileExistsError):  # the holder removed it between two looks, mkdir's own included
            if folder.is_file():
                raise
            continue
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waited:
                    on_wait()
                    waited = True
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_current(handle, folder / "lock"):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_current(handle: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev)


@contextmanager
def lock_if_free(lock: Path) -> Iterator[bool]:
    """Whether nobody holds the lock; it is held inside. A lock that is missing is not known to be free."""
    try:
        stream = lock.open("rb")
    except OSError:
        yield False
        return
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
