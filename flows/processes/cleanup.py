"""Remove the remains of killed runs; checkpoints and logs of unfinished steps stay.

A lock in each folder tells whether it is in use: the kernel releases it when its holder dies.
"""

import shutil
import tempfile
from pathlib import Path

from flows.processes.locks import lock_if_free
from lineage.layout import Layout

RAY_FOLDER_PREFIX = "posttrain-ray-"
"""Prefix of session folders in the system's temporary folder; paths of sockets must be short."""
SANDBOX_PREFIX = "posttrain-sandbox-"
"""Prefix of the folders of sandboxed programs (learning/sandbox/run.py)."""
UNFINISHED = ("tmp-*", "damaged-*")


def clean_up(layout: Layout) -> None:
    """Remove unpublished artifacts, Ray sessions and the address of a dead server that no process holds."""
    for work in (layout.state / "work").glob("*"):
        left = [folder for pattern in UNFINISHED for folder in work.glob(pattern)]
        with lock_if_free(work / "lock") as free:
            for folder in left if free else ():
                shutil.rmtree(folder, ignore_errors=True)
    _remove_server_address(layout.state / "prefect")
    elsewhere = Path(tempfile.gettempdir())
    sessions = (layout.state / "ray").glob("r*")
    for session in (*sessions, *elsewhere.glob(f"{RAY_FOLDER_PREFIX}*"), *elsewhere.glob(f"{SANDBOX_PREFIX}*")):
        with lock_if_free(session / "lock") as free:
            if free:
                shutil.rmtree(session, ignore_errors=True)


def _remove_server_address(home: Path) -> None:
    """Remove the address of a killed server; a process that is about to start one waits for the lock on `users`."""
    with lock_if_free(home / "users") as is_unused, lock_if_free(home / "host.lock") as is_dead:
        if is_unused and is_dead:
            (home / "server.json").unlink(missing_ok=True)
