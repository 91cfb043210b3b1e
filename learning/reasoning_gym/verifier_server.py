"""The process in which verifiers of reasoning-gym read completions, started by `learning.reasoning_gym.verifiers`.

`python -m learning.reasoning_gym.verifier_server <socket> <parent>`. The server generates problems, which are trusted,
and forwards texts, which are not: a child per request installs the irrevocable guards of `learning.sandbox.child` and
only then reads the texts. It writes a line for each, which must be a number from 0 to 1 or the name of an exception.
A request is two frames, a JSON header and the texts of one row; an answer is one JSON frame.
"""

import copy
import gc
import importlib
import json
import os
import random
import re
import select
import signal
import socket
import struct
import sys
import sysconfig
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from learning.reasoning_gym import families as gym
from learning.reasoning_gym import grammar as gym_grammar
from learning.sandbox import child
from learning.sandbox.filters import compiled, machine
from learning.sandbox.process import readable
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.package import import_path

MEMORY = 512 * 2**20
"""Bytes of memory that a child may use in addition to those of the server."""
COMPUTING, WALL = 3, 20.0
"""Limits of a child's CPU time and wall time, in seconds."""
OPEN_FILES = 64
LONGEST_LINE = 100
"""Limit of bytes of a child's line for a text."""
SCORE = re.compile(rb"score (0\.\d{1,20}|1\.0|\d(?:\.\d{1,20})?e-\d{1,3})")
FAILED = re.compile(rb"raised ([A-Za-z_]{1,60})")


@dataclass
class Request:
    """Texts of one row to be scored."""

    number: int
    row: JsonObject
    sizes: list[int]
    """Bytes of each text."""
    scorer: str | None = None
    """The class that scores instead of the row's verifier."""
    texts: bytes = b""


@dataclass
class Running:
    """A child that reads texts."""

    request: Request
    process: int
    pipe: int
    ends: float
    """Time at which it is killed, on the monotonic clock."""
    output: bytes = b""
    late: bool = False


class Server:
    """Reads requests, runs at most one child per core at a time, and answers in the order in which children end."""

    def __init__(self, link: socket.socket):
        self.link = link
        self.received = bytearray()
        self.header: Request | None = None
        self.waiting: deque[Request] = deque()
        self.running: dict[int, Running] = {}
        self.filter = compiled(machine() or "")
        self.folders = folders()
        self.most = len(os.sched_getaffinity(0))

    def serve(self) -> None:
        """Serve requests until the other side closes the link."""
        while self.step():
            while self.waiting and len(self.running) < self.most:
                self.begin(self.waiting.popleft())

    def step(self) -> bool:
        """Wait for requests and for children; return False if the other side has closed the link."""
        first = min((one.ends for one in self.running.values() if not one.late), default=None)
        left = None if first is None else max(0.0, first - time.monotonic())
        ready, _, _ = select.select([self.link, *self.running], [], [], left)
        for one in self.running.values():
            if not one.late and one.ends <= time.monotonic():
                one.late = True
                os.kill(one.process, signal.SIGKILL)
        for pipe in ready:
            if isinstance(pipe, int):
                self.collect(self.running[pipe])
        return self.receive() if self.link in ready else True

    def receive(self) -> bool:
        """Read received data; return False if the link is closed."""
        chunk = self.link.recv(1 << 20)
        self.received += chunk
        while len(self.received) >= 4 and len(self.received) >= 4 + (size := struct.unpack("!I", self.received[:4])[0]):
            frame = bytes(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            if self.header is None:
                self.header = Request(**json.loads(frame))
            else:
                self.waiting.append(replace(self.header, texts=frame))
                self.header = None
        return bool(chunk)

    def begin(self, request: Request) -> None:
        """Generate the problem and fork a child that reads the texts."""
        try:
            source, entry = problem(**request.row) if request.scorer is None else prepare(request.scorer, request.row)
        except StepError as error:
            self.answer(request.number, error=str(error))
            return
        except Exception as error:
            self.answer(request.number, error=f"row {request.row['id']}: {type(error).__name__}: {error}")
            return
        parent = os.getpid()
        pipe, tell = os.pipe()
        process = os.fork()
        if process == 0:
            self.become_verifier(parent, tell, request, source, entry)
        os.close(tell)
        self.running[pipe] = Running(request, process, pipe, time.monotonic() + WALL)

    def become_verifier(self, parent: int, tell: int, request: Request, source: Any, entry: Any) -> NoReturn:
        """Install the guards in this process, score the texts, and exit."""
        code = 1
        try:
            tell = keep_only(tell)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            child.guard(parent, [used + MEMORY, COMPUTING, 0, OPEN_FILES], self.filter, self.folders)
            gym_grammar.confine(entry)
            for start, size in zip(accumulate(request.sizes, initial=0), request.sizes, strict=False):
                os.write(tell, score_text(source, entry, request.texts[start : start + size]) + b"\n")
            code = 0
        finally:
            os._exit(code)

    def collect(self, one: Running) -> None:
        """Read a child's output; when it has ended, answer the request."""
        most = LONGEST_LINE * len(one.request.sizes)
        chunk = os.read(one.pipe, most + 1)
        one.output += chunk
        if chunk and len(one.output) <= most:
            return
        os.kill(one.process, signal.SIGKILL)
        _, status = os.waitpid(one.process, 0)
        os.close(one.pipe)
        del self.running[one.pipe]
        well = os.WIFEXITED(status)
        self.answer(
            one.request.number, scores=read_lines(one), end="ended" if well else "time" if one.late else "killed"
        )

    def answer(self, number: int, **fields: Any) -> None:
        """Send one frame."""
        frame = json.dumps({"number": number, **fields}).encode()
        self.link.sendall(struct.pack("!I", len(frame)) + frame)


def score_text(source: Any, entry: JsonObject, text: bytes) -> bytes:
    """Return a child's line for a text."""
    try:
        fix_chance()
        return f"score {gym.score_of(source, copy.deepcopy(entry), text.decode('utf-8', 'surrogatepass'))!r}".encode()
    except BaseException as error:
        return f"raised {type(error).__name__}".encode()


def read_lines(one: Running) -> list[float | str]:
    """Return the score of each text, or the name of its verifier's exception, up to the first line that is neither.

    Return an empty list if there are more lines than texts.
    """
    lines = one.output.split(b"\n")[:-1]
    results: list[float | str] = []
    for line in lines if len(lines) <= len(one.request.sizes) else []:
        if score := SCORE.fullmatch(line):
            results.append(float(score[1]))
        elif failed := FAILED.fullmatch(line):
            results.append(failed[1].decode())
        else:
            break
    return results


@lru_cache(maxsize=512)
def problem(**row: Any) -> tuple[Any, JsonObject]:
    """Return the block and the entry that a row was generated from; cached, since the samples of a group share it.

    Raise StepError if they cannot be reproduced.
    """
    source, entry = gym.entry_of(row)
    warm_up(type(source).score_answer, source, entry)
    return source, entry


def prepare(scorer: str, row: JsonObject) -> tuple[Any, JsonObject]:
    """Return a scorer that code of posttrain names, and the entry that it scores texts of a row with."""
    return load_scorer(scorer), {"answer": row["answer"], "metadata": {}}


@lru_cache(maxsize=8)
def load_scorer(name: str) -> Any:
    """Return an object of a class, `package.module:Class`."""
    module, _, kind = name.partition(":")
    return getattr(importlib.import_module(import_path(module)), kind)()


warm: set[Any] = set()
"""Verifiers that have read an answer in this process."""


def warm_up(verifier: Any, source: Any, entry: JsonObject) -> None:
    """Score the library's own answer once with a verifier, so that children inherit its loaded modules and tables."""
    if verifier not in warm and isinstance(entry["answer"], str):
        warm.add(verifier)
        with suppress(Exception):
            source.score_answer(entry["answer"], copy.deepcopy(entry))


def fix_chance() -> None:
    """Seed the random generators that verifiers use; sympy draws random points for its comparisons."""
    import sympy.core.random

    random.seed(0)
    sympy.core.random.seed(0)


def keep_only(tell: int) -> int:
    """Close every file except `tell`, which becomes descriptor 3; stdin, stdout and stderr become /dev/null."""
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    os.dup2(tell, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    return 3


def folders() -> list[str]:
    """Return the folders that a child may read: Python's library, the system's libraries, and installed packages."""
    import reasoning_gym

    packages = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    return [*readable().split(":"), *packages, str(Path(reasoning_gym.__file__).parent)]


def enter_no_folder() -> None:
    """Make a deleted folder the working folder: a child could write only below it, and no file can be created there."""
    name = tempfile.mkdtemp()
    os.chdir(name)
    os.rmdir(name)  # noqa: PTH106 - a folder that is the current one


def main(link: int, parent: int) -> None:
    """Serve the parent process, and end with it."""
    child.dies_with(parent)
    os.environ.clear()
    enter_no_folder()
    gym_grammar.replace_evaluators()
    fix_chance()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=link) as opened:
        Server(opened).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
