"""Environment `openenv`: an environment behind a server of OpenEnv, one session per episode."""

import contextlib
import json
import math
import weakref
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from learning.data.rows import Row
from learning.environments.local_server import LocalServer
from learning.environments.protocol import Outcome
from learning.tools.mcp_servers import OWN_HOSTS
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.references import AnyRef

HIDDEN = ("done", "reward", "metadata")
"""Fields of every observation that are not shown to the model."""
LARGEST = 1 << 24
"""Bytes of a message."""


class Environment:
    """Play an environment behind OpenEnv's server: reset, then a step for every turn, over its WebSocket.

    The problems of a stage are made by `starts`, each with a seed for `reset`. (Meta and Hugging Face 2025.)
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        command: list[str] = [],  # noqa: B006 (never changed; a recipe needs the default to be readable)
        folder: AnyRef | None = None,
        hosts: list[str] = [],  # noqa: B006
        field: str | None = "message",
        actions: dict[str, JsonObject] = {},  # noqa: B006
        show: str | None = None,
        kwargs: JsonObject = {},  # noqa: B006
        seconds: Annotated[float, Field(gt=0)] = 30.0,
    ) -> None:
        """Set the server: `url` on this machine or on one of `hosts`, or the `command` that starts it in `folder`.

        `{port}` in `command` is a free port of 127.0.0.1. A turn is the value of the action's `field`; with `actions`,
        a map from words to actions, the last such word of a turn counts; with `field: null` a turn is the action as
        JSON. `show` is the field of an observation that the model sees; null: all of them as JSON. `kwargs` are passed
        to `reset`. A reset or step that takes longer than `seconds` ends the episode.
        """
        if bool(command) == bool(url):
            raise StepError("env openenv: give either `command` (a program) or `url` (a running server)")
        if url and (host := urlsplit(url).hostname) not in (*OWN_HOSTS, *hosts):
            raise StepError(f"env openenv: {url} is not on this machine; name {host} in `hosts` to allow it")
        self.field, self.show, self.kwargs, self.seconds = field, show, kwargs, seconds
        self.actions = {word.casefold(): action for word, action in actions.items()}
        self.server = LocalServer("env openenv", command, folder) if command else None
        self.url = url or f"http://127.0.0.1:{self.server.port if self.server else 0}"

    def show_start(self, number: int) -> str:
        """Return what is seen after a reset with this seed."""
        return Play(self, number).shown

    def begin(self, row: Row, seed: int) -> "Play":
        """Return an episode from the start that the row names. Raise StepError if it names none."""
        start = json.loads(row["metadata"] or "{}").get("start")
        if not isinstance(start, int):
            raise StepError(f"env openenv: row {row['id']} names no start; make problems with {{use: starts}}")
        return Play(self, start)

    def make_action(self, turn: str) -> JsonObject | None:
        """Return the action that a turn means; None if it means none."""
        if self.actions:
            words = [word for word in turn.casefold().split() if word in self.actions]
            return self.actions[words[-1]] if words else None
        if self.field is not None:
            return {self.field: turn}
        try:
            action = json.loads(turn)
        except (ValueError, RecursionError):
            return None
        return action if isinstance(action, dict) else None

    def describe_action(self) -> str:
        """Return what a turn without an action is answered with."""
        return f"write one of: {', '.join(self.actions)}" if self.actions else "write an action as a JSON object"


class Play:
    """One episode: a session of the server."""

    def __init__(self, environment: Environment, start: int) -> None:
        from websockets.sync.client import connect  # an optional dependency

        self.environment = environment
        address = f"{environment.url.rstrip('/').replace('http', 'ws', 1)}/ws"
        try:
            self.socket = connect(address, open_timeout=environment.seconds, max_size=LARGEST, proxy=None)
        except Exception as error:  # of the network, or of the protocol
            raise StepError(f"env openenv: no session at {address}: {type(error).__name__}: {error}") from error
        weakref.finalize(self, _end_session, self.socket)
        try:
            self.shown = self._show(self._ask("reset", {"seed": start, **environment.kwargs}))
        except Exception as error:
            problem = f"reset with seed {start}: {type(error).__name__}: {error}"
            raise StepError(f"env openenv: {environment.url}: {problem}") from error

    def step(self, action: str) -> Outcome:
        """Carry out a turn; what goes wrong on the server ends the episode."""
        chosen = self.environment.make_action(action)
        if chosen is None:
            return Outcome(self.environment.describe_action(), ok=False)
        try:
            data = self._ask("step", chosen)
            reward, done = float(data.get("reward") or 0.0), bool(data.get("done"))
            if not math.isfinite(reward):
                raise ValueError(f"the reward {reward} is no finite number")
            shown = "" if done else self._show(data)
        except Exception as error:  # a stranger's server may answer anything; the run continues
            _end_session(self.socket)
            return Outcome(f"error: {error}", done=True, ok=False)
        if done:
            _end_session(self.socket)
        return Outcome(shown, done=done, reward=reward)

    def _ask(self, kind: str, data: JsonObject) -> JsonObject:
        """Return the answer to a message. Raise ValueError for an error of the server, TimeoutError without answer."""
        self.socket.send(json.dumps({"type": kind, "data": data}))
        answer: Any = json.loads(self.socket.recv(self.environment.seconds))
        content = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(content, dict):
            raise ValueError("the server's answer is no message of OpenEnv")
        if answer.get("type") == "error":
            raise ValueError(str(content.get("message") or content))
        return content

    def _show(self, data: JsonObject) -> str:
        observation, show = data.get("observation"), self.environment.show
        if not isinstance(observation, dict):
            raise ValueError("the server's answer has no observation")
        if show is None:
            return json.dumps({name: value for name, value in observation.items() if name not in HIDDEN})
        if show not in observation:
            raise ValueError(f"an observation has no `{show}`; it has {', '.join(observation)}")
        return str(observation[show])


def _end_session(socket: Any) -> None:
    """Close a session, as far as the server still answers."""
    with contextlib.suppress(Exception):
        socket.send(json.dumps({"type": "close"}))
        socket.close()
