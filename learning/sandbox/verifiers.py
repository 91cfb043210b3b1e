"""Have texts of a model scored by verifiers that are not ours, outside of this process.

One server per process that scores, started when the first text comes, idle between batches, ended with this process.
"""

import atexit
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from learning.sandbox.run import available
from schemas.errors import StepError

MOST_TEXT = 2**20
"""Characters of a text; a longer one is not scored."""
UNTIL_HEARD = 300.0
"""Seconds without any answer after which the server counts as lost; a child has 20, making a problem has no bound."""
STARTS = 3
"""Servers in a row that may end without an answer."""
MODULE = "learning.sandbox.verifier_server"


@dataclass(frozen=True)
class Verdict:
    """What came of a text."""

    score: float | None
    """From 0 to 1; None: it could not be scored."""
    why: str = ""
    """Why it could not: `time`, `length`, or the name of what the verifier raised."""


@dataclass
class Connection:
    """A running server, for one process and one batch at a time."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    errors: IO[bytes]
    owner: int = field(default_factory=os.getpid)
    received: bytearray = field(default_factory=bytearray)

    def end(self) -> None:
        """Nothing of the server is left; of another process's only this side is closed."""
        self.link.close()
        self.errors.close()
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        """What the server wrote to stderr at its end."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-400:]

    def exchange(self, requests: bytes, expected: int, found: dict[int, dict[str, Any]]) -> None:
        """Send requests and gather answers until all are there or the server is gone."""
        unsent = memoryview(requests)
        with selectors.DefaultSelector() as selector:
            selector.register(self.link, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while len(found) < expected:
                ready = selector.select(UNTIL_HEARD)
                if not ready:
                    raise ConnectionError(f"no answer for {UNTIL_HEARD:g} seconds")
                if ready[0][1] & selectors.EVENT_WRITE:
                    unsent = unsent[self.link.send(unsent[: 1 << 18]) :]
                    if not unsent:
                        selector.modify(self.link, selectors.EVENT_READ)
                if ready[0][1] & selectors.EVENT_READ:
                    self.gather(found)

    def gather(self, found: dict[int, dict[str, Any]]) -> None:
        """Read what the server has answered; raises ConnectionError at its end."""
        chunk = self.link.recv(1 << 16)
        if not chunk:
            raise ConnectionError("it ended")
        self.received += chunk
        while len(self.received) >= 4 and len(self.received) >= 4 + (size := struct.unpack("!I", self.received[:4])[0]):
            said = json.loads(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            found[said["number"]] = said


lock = threading.Lock()
current: list[Connection] = []


def judge(rows: Sequence[dict[str, Any]], texts: Sequence[str]) -> list[Verdict]:
    """The verdict of each row's verifier on its text, each in a process of its own behind the guards of the sandbox.

    Raises StepError where this machine lacks a guard, and for rows that reasoning-gym did not make.
    """
    if not texts:
        return []
    if reason := available():
        raise StepError(f"verifiers of reasoning-gym read texts of models in the sandbox alone: {reason}")
    asked = {n: frames(n, row, text) for n, (row, text) in enumerate(zip(rows, texts, strict=True)) if fits(text)}
    found: dict[int, dict[str, Any]] = {}
    with lock:
        failures = 0
        while asked.keys() - found.keys():
            before = len(found)
            requests = b"".join(frame for n, frame in asked.items() if n not in found)
            try:
                server().exchange(requests, len(asked), found)
            except BaseException as error:
                words = current[0].last_words() if current else ""
                stop()
                if not isinstance(error, OSError):
                    raise
                failures = 1 if len(found) > before else failures + 1
                if failures >= STARTS:
                    raise StepError(f"the verifier server ended {STARTS} times without an answer: {words}") from error
    for said in found.values():
        if "error" in said:
            raise StepError(said["error"])
    unread = {"why": "length"}
    return [verdict(found.get(n, unread)) for n in range(len(texts))]


def fits(text: str) -> bool:
    """Whether a text is short enough to be sent."""
    return len(text) <= MOST_TEXT


def frames(number: int, row: dict[str, Any], text: str) -> bytes:
    """A request."""
    header = {"number": number, "row": {name: row[name] for name in ("id", "answer", "metadata")}}
    parts = [json.dumps(header).encode(), text.encode("utf-8", "surrogatepass")]
    return b"".join(struct.pack("!I", len(part)) + part for part in parts)


def verdict(said: dict[str, Any]) -> Verdict:
    """What an answer says; anything but a number from 0 to 1 is no score."""
    score = said.get("score")
    if isinstance(score, float) and 0 <= score <= 1:
        return Verdict(score)
    return Verdict(None, str(said.get("why", "no score")))


def server() -> Connection:
    """The running server; a process that was forked from one that has a server starts its own."""
    if current and current[0].owner != os.getpid():
        stop()
    if not current:
        current.append(start())
    return current[0]


def stop() -> None:
    """End the server, if there is one."""
    while current:
        current.pop().end()


def start() -> Connection:
    """Start a server from a thread that lasts as long as this process: the kernel ends the server with its thread."""
    started: list[Connection | OSError] = []
    done = threading.Event()

    def begin() -> None:
        try:
            started.append(launched())
        except OSError as error:
            started.append(error)
        done.set()
        threading.Event().wait()

    threading.Thread(target=begin, name="verifiers", daemon=True).start()
    done.wait()
    if isinstance(started[0], OSError):
        raise StepError(f"the verifier server cannot be started: {started[0]}")
    return started[0]


def launched() -> Connection:
    """The process of the server: no environment but where modules are, a seed for hashes, and one thread for numpy."""
    ours, theirs = socket.socketpair()
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
    paths = [os.path.abspath(path) for path in sys.path if os.path.isdir(path)]  # noqa: PTH100, PTH112
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-B", "-X", "utf8", "-m", MODULE, str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
        )
    ours.setblocking(False)
    return Connection(process, ours, errors)


atexit.register(stop)
