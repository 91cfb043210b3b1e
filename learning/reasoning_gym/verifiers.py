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
from schemas.package import import_path

MOST_TEXT = 2**20
"""Characters of a text; a longer one is not scored."""
UNTIL_ANSWERED = 300.0
"""Seconds without any answer after which the server counts as lost; a child has 20, making a problem has no bound."""
TOGETHER = 8
"""Texts of one row that a process may read; alone are read those at which such a process came to its end."""
STARTS = 3
"""Servers in a row that may end without an answer."""
ROW = ("id", "answer", "metadata")
"""What the server needs of a row."""
COMMAND = ("-m", "learning.reasoning_gym.verifier_server")
"""Words of the server's command line, with the module as in a checkout: a step's key counts what such a text names."""

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONMALLOC": "malloc",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@dataclass(frozen=True)
class Verdict:
    """What came of a text."""

    score: float | None
    """From 0 to 1; None: it could not be scored."""
    why: str = ""
    """Why it could not: `time`, `length`, `killed` (by a bound), or the name of what the verifier raised."""


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
                ready = selector.select(UNTIL_ANSWERED)
                if not ready:
                    raise ConnectionError(f"no answer for {UNTIL_ANSWERED:g} seconds")
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
    """The verdict of each row's verifier on its text, in processes behind the guards of the sandbox.

    Raises StepError where this machine lacks a guard, and for rows that reasoning-gym did not make.
    """
    if not texts:
        return []
    if reason := available():
        raise StepError(f"verifiers of reasoning-gym read texts of models in the sandbox alone: {reason}")
    found: list[Verdict | None] = [None if len(text) <= MOST_TEXT else Verdict(None, "length") for text in texts]
    alike: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(rows):
        if found[i] is None:
            alike.setdefault(tuple(row[name] for name in ROW), []).append(i)
    parts = [places[i : i + TOGETHER] for places in alike.values() for i in range(0, len(places), TOGETHER)]
    with lock:
        for places, said in zip(parts, ask([request(rows, texts, part) for part in parts]), strict=True):
            for i, one in zip(places, said["said"], strict=False):
                found[i] = verdict(one)
        alone = [i for i, one in enumerate(found) if one is None]
        for i, said in zip(alone, ask([request(rows, texts, [i]) for i in alone]), strict=True):
            found[i] = verdict(said["said"][0] if said["said"] else said["end"])
    return [one for one in found if one is not None]


def request(rows: Sequence[dict[str, Any]], texts: Sequence[str], places: list[int]) -> tuple[dict[str, Any], bytes]:
    """The header and the bytes of a request: texts of one row."""
    sent = [texts[i].encode("utf-8", "surrogatepass") for i in places]
    return {"row": {name: rows[places[0]][name] for name in ROW}, "sizes": [len(text) for text in sent]}, b"".join(sent)


def ask(requests: Sequence[tuple[dict[str, Any], bytes]]) -> list[dict[str, Any]]:
    """The server's answer to each request; a server that is gone is started again. Raises StepError."""
    found: dict[int, dict[str, Any]] = {}
    failures = 0
    while missing := [n for n in range(len(requests)) if n not in found]:
        before = len(found)
        try:
            server().exchange(b"".join(frames(n, *requests[n]) for n in missing), len(requests), found)
        except BaseException as error:
            words = current[0].last_words() if current else ""
            stop()
            if not isinstance(error, OSError):
                raise
            failures = 1 if len(found) > before else failures + 1
            if failures >= STARTS:
                raise StepError(f"the verifier server ended {STARTS} times without an answer: {words}") from error
    if errors := [said["error"] for _, said in sorted(found.items()) if "error" in said]:
        raise StepError(errors[0])
    return [found[n] for n in range(len(requests))]


def frames(number: int, header: dict[str, Any], texts: bytes) -> bytes:
    """A request as it is sent."""
    parts = json.dumps({"number": number, **header}).encode(), texts
    return b"".join(struct.pack("!I", len(part)) + part for part in parts)


def verdict(said: Any) -> Verdict:
    """What is said of a text; anything but a number from 0 to 1 is no score."""
    if isinstance(said, float) and 0 <= said <= 1:
        return Verdict(said)
    return Verdict(None, said if isinstance(said, str) else "no score")


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
    """The process of the server: no environment but where modules are, a seed for hashes, and one thread for numpy.

    The C library's own allocator, on large pages, makes its children cost half.
    """
    atexit.unregister(stop)  # here and not at import: who scores nothing does not depend on this module
    atexit.register(stop)
    ours, theirs = socket.socketpair()
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
    paths = [os.path.abspath(path) for path in sys.path if os.path.isdir(path or ".")]  # noqa: PTH100, PTH112
    python = [sys.executable, "-P", "-s", "-B", "-X", "utf8"]
    with theirs:
        process = subprocess.Popen(
            [*python, *map(import_path, COMMAND), str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={"PYTHONPATH": os.pathsep.join(paths), **ENVIRONMENT},
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
        )
    ours.setblocking(False)
    return Connection(process, ours, errors)
