"""A server of an environment on this machine, which ends with its user."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

from schemas.errors import StepError

START_SECONDS = 60.0
SHOWN = 500
"""Characters of what a server printed that an error shows."""


class LocalServer:
    """A process that listens on a free port of 127.0.0.1; it is ended when this object is no longer used."""

    def __init__(self, what: str, command: list[str], folder: str | Path | None) -> None:
        """Start a command, in which `{port}` is the port, and wait until it listens.

        Raise StepError, beginning with `what`, if it ends or does not listen within a minute.
        """
        if not any("{port}" in word for word in command):
            raise StepError(f"{what}: `command` must contain {{port}}, the port of 127.0.0.1 to listen on")
        self.port = _find_free_port()
        words = [word.replace("{port}", str(self.port)) for word in command]
        if words[0] == "python":
            words[0] = sys.executable
        with tempfile.TemporaryFile() as output:
            try:
                self.process = subprocess.Popen(
                    words, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            except OSError as error:
                raise StepError(f"{what}: {words[0]} cannot be started: {error.strerror}") from error
            self.end = weakref.finalize(self, _end, self.process)
            deadline = time.monotonic() + START_SECONDS
            while not _listens(self.port):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.end()
                    output.seek(0)
                    printed = output.read().decode(errors="replace").strip()[-SHOWN:]
                    raise StepError(f"{what}: {' '.join(words)} does not listen on port {self.port}: {printed}")
                time.sleep(0.05)


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
