"""Environment `isolated`: another environment, whose episodes play in processes of their own that can be ended."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from learning.data.rows import Row
from learning.environments import isolated_world
from learning.environments.protocol import Outcome
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.package import IMPORT_FOLDER
from schemas.use import EnvUse

START_SECONDS = 120.0
"""Most seconds that the inner environment may take to be made."""


class NoAnswer(Exception):
    """The process of an episode took too long, or has ended."""


class Environment:
    """Play `of` in processes: a step that does not return within `seconds`, or ends its process, costs its episode.

    That process is killed, the episode ends with a failed turn, and all others continue. The inner environment is made
    once, in a process that forks for each episode. An exception of the inner environment is an error, as it is without
    processes.
    """

    def __init__(self, *, of: EnvUse, seconds: Annotated[float, Field(gt=0)] = 10.0) -> None:
        self.of, self.seconds = of, seconds
        self.lock = threading.Lock()
        self.server: Server | None = None

    def begin(self, row: Row, seed: int) -> "Play":
        """Return an episode of `of`. Raise StepError if it cannot be begun in time."""
        with self.lock:
            if self.server is None:
                self.server = Server(self.of)
            server, channel = self.server, self.server.open_episode()
        name = row.get("id")
        try:
            connection = Connection(server, channel, self.seconds)
            answer = connection.ask({"call": "begin", "row": row, "seed": seed})
        except NoAnswer as error:
            raise StepError(f"env isolated: an episode of {self.of.use} for {name} does not begin: {error}") from error
        return (NamedPlay if answer["named"] else Play)(connection)


class Server:
    """The process that forks for episodes; it is ended when this object is no longer used."""

    def __init__(self, of: EnvUse) -> None:
        """Start it; raise StepError if the inner environment cannot be made."""
        self.control, theirs = socket.socketpair()
        paths = [str(IMPORT_FOLDER), *filter(None, sys.path), str(Path.cwd())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", isolated_world.__name__, str(number)]
            self.process = subprocess.Popen(
                command, pass_fds=[number], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
            )
        self.end = weakref.finalize(self, _end, self.process, self.control)
        use = of.model_dump_json().encode()
        self.control.settimeout(START_SECONDS)
        try:
            self.control.sendall(len(use).to_bytes(4, "big") + use)
            answer = json.loads(_read_line(self.control))
        except (OSError, ValueError) as error:
            self.end()
            raise StepError(f"env isolated: the process of {of.use} does not start: {error}") from error
        if "error" in answer:
            self.end()
            raise StepError(f"env isolated: {of.use} cannot be made: {answer['error']}")

    def open_episode(self) -> socket.socket:
        """Return the socket of a new episode. Raise StepError if the process has ended."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self.control, [b"e"], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise StepError(f"env isolated: the process that begins episodes has ended: {error.strerror}") from error
        return ours


class Connection:
    """The process of one episode."""

    def __init__(self, server: Server, channel: socket.socket, seconds: float) -> None:
        """Raise NoAnswer if it does not start in time."""
        self.server = server  # with which it would end
        self.channel, self.seconds, self.process = channel, seconds, -1
        self.end = weakref.finalize(self, channel.close)
        channel.settimeout(seconds)
        answer = self._read()
        self.process = os.pidfd_open(answer["process"])
        self.end = weakref.finalize(self, _end_episode, channel, self.process, self.end)

    def ask(self, request: JsonObject) -> JsonObject:
        """Return the answer to a request.

        Raise NoAnswer and end the process if there is none in time, and StepError if the environment raised.
        """
        try:
            self.channel.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self.end()
            raise NoAnswer("its process has ended") from error
        answer = self._read()
        if "error" in answer:
            raise StepError(f"env isolated: {answer['error']}")
        return answer

    def _read(self) -> JsonObject:
        try:
            line = _read_line(self.channel)
        except TimeoutError as error:
            self.end()
            raise NoAnswer(f"no answer within {self.seconds:g} seconds; its process was ended") from error
        except OSError as error:
            self.end()
            raise NoAnswer("its process has ended") from error
        return json.loads(line)


class Play:
    """One episode."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def step(self, action: str) -> Outcome:
        """Carry out a turn; a process that does not answer ends the episode."""
        try:
            outcome = Outcome(**self.connection.ask({"call": "step", "action": action}))
        except NoAnswer as error:
            return Outcome(f"error: {error}", done=True, ok=False)
        if outcome.done:
            self.connection.end()
        return outcome

    def save(self) -> Row:
        """Return the state of the inner episode."""
        return self._ask({"call": "save"})["saved"]

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self._ask({"call": "restore", "saved": saved})

    def _ask(self, request: JsonObject) -> JsonObject:
        try:
            return self.connection.ask(request)
        except NoAnswer as error:
            raise StepError(f"env isolated: {request['call']}: {error}") from error


class NamedPlay(Play):
    """One episode whose environment names its states."""

    @property
    def state_name(self) -> str:
        """Return the name of the present state."""
        return self._ask({"call": "state_name"})["state_name"]


def _read_line(channel: socket.socket) -> bytes:
    """Return the next line. Raise OSError at the end of the stream, and TimeoutError if it does not come in time."""
    pieces: list[Any] = []
    while not pieces or not pieces[-1].endswith(b"\n"):
        piece = channel.recv(1 << 16)
        if not piece:
            raise ConnectionResetError("it closed the connection")
        pieces.append(piece)
    return b"".join(pieces)


def _end(process: subprocess.Popen, control: socket.socket) -> None:
    control.close()
    process.kill()  # its children end with it
    process.wait()


def _end_episode(channel: socket.socket, process: int, close: Any) -> None:
    close()
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    os.close(process)
