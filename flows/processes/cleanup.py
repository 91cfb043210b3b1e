"""What killed runs leave: swept by the next run. Checkpoints and logs of unfinished steps stay.

Whether somebody still uses a folder is told by a lock in it, which the kernel takes back when its holder dies.
"""

import shutil
import tempfile
from pathlib import Path

from flows.processes.locks import unused
from lineage.layout import Layout

ELSEWHERE = "posttrain-ray-"
"""How the folders of sessions begin that lie in the system's temporary folder because paths of sockets are short."""
SANDBOXES = "posttrain-sandbox-"
"""How the folders of programs of models begin, likewise (learning/sandbox/run.py)."""
UNFINISHED = ("tmp-*", "damaged-*")


def sweep(layout: Layout) -> None:
    """Remove what nobody holds: unpublished artifacts, sessions of Ray, the address of a dead server."""
    for work in (layout.state / "work").glob("*"):
        left = [folder for pattern in UNFINISHED for folder in work.glob(pattern)]
        with unused(work / "lock") as free:
            for folder in left if free else ():
                shutil.rmtree(folder, ignore_errors=True)
    _forget_server(layout.state / "prefect")
    elsewhere = Path(tempfile.gettempdir())
    sessions = (layout.state / "ray").glob("r*")
    for session in (*sessions, *elsewhere.glob(f"{ELSEWHERE}*"), *elsewhere.glob(f"{SANDBOXES}*")):
        with unused(session / "lock") as free:
            if free:
                shutil.rmtree(session, ignore_errors=True)


def _forget_server(home: Path) -> None:
    """Remove the address of a server that was killed; whoever is about to start one waits for the lock on `users`."""
    with unused(home / "users") as nobody, unused(home / "host.lock") as dead:
        if nobody and dead:
            (home / "server.json").unlink(missing_ok=True)
