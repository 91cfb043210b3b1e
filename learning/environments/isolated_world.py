"""The process behind environment `isolated`: it makes the inner environment once and forks for every episode.

`python -m learning.environments.isolated_world <control socket>`; the first line that it reads is the use of the inner
environment as JSON. Every message on the control socket carries the socket of a new episode, which a child serves: it
reads a request a line and writes an answer a line, both JSON. The children end with this process, and it ends with the
process that started it.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from dataclasses import asdict
from typing import Any, NoReturn

from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import EnvironmentProtocol, HasStateName
from learning.environments.replayed import make_savable
from schemas.base import JsonObject
from schemas.use import EnvUse

DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def serve(control: socket.socket) -> None:
    """Fork a child for every socket that arrives, until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    length = int.from_bytes(control.recv(4, socket.MSG_WAITALL), "big")
    use = EnvUse.model_validate_json(control.recv(length, socket.MSG_WAITALL))
    try:
        environment = build_environment(use, {})
    except Exception as error:
        _say(control, {"error": f"{type(error).__name__}: {error}"})
        return
    _say(control, {"ready": True})
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if not os.fork():
            control.close()
            ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
            _play(environment, socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])


def _play(environment: EnvironmentProtocol, channel: socket.socket) -> NoReturn:
    """Serve the requests of one episode, then end this process."""
    episode: Any = None
    _say(channel, {"process": os.getpid()})
    for line in channel.makefile("rb"):
        request = json.loads(line)
        try:
            if request["call"] == "begin":
                episode = make_savable(environment.begin(request["row"], request["seed"]))
                answer: JsonObject = {"named": isinstance(episode, HasStateName)}
            elif request["call"] == "state_name":
                answer = {"state_name": episode.state_name}
            elif request["call"] == "save":
                answer = {"saved": episode.save()}
            elif request["call"] == "restore":
                answer = {"restored": episode.restore(request["saved"])}
            else:
                answer = asdict(episode.step(request["action"]))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        _say(channel, answer)
    os._exit(0)


def _say(channel: socket.socket, answer: JsonObject) -> None:
    channel.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
