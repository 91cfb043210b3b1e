"""Environment `tools`: a turn of the model calls a tool, or is its answer."""

import contextlib
import re
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.patterns import MatchTimeout, Pattern
from learning.data.rows import Row
from learning.environments.protocol import Outcome
from learning.lookup import Bound, ToolFunction
from schemas.errors import StepError

Seconds = Annotated[float, Field(ge=0)]
CALL = r"\s*([A-Za-z_]\w*):(.*)"
"""The name of a tool and a colon, then the query."""
LONGEST_NAME = 80
"""Limit of characters of an unknown tool's name in the reply."""


class Environment:
    """Run tool calls, written `name: query`; a turn without a call is the answer and ends the episode.

    A tool is called by the name of its function, or as `called` names it. An error, such as an unknown name, is the
    reply to the model, which may try again. (VerlTool, Jiang et al. 2025.)
    """

    def __init__(
        self,
        *,
        tools: Annotated[list[ToolFunction], Field(min_length=1)],
        longest: Annotated[int, Field(ge=1)] = 200,
        call: str = CALL,
        latency: dict[str, Seconds] = {},  # noqa: B006 (never changed; a recipe needs the default to be readable)
    ):
        """Set the tools and the form of their calls.

        The first `longest` characters of a result are shown. `call` matches an entire turn that is a call, with groups
        for tool and query. `latency` is the duration of a tool's calls in seconds, for a clock that does not measure
        it.
        """
        self.tools: dict[str, Bound] = {}
        for tool in tools:
            name = tool.called or tool.name.rpartition(":")[2]
            if name in self.tools:
                raise StepError(f"env tools: two tools are called {name}; give one of them another name by `called`")
            self.tools[name] = tool
        if unknown := sorted(latency.keys() - self.tools.keys()):
            raise StepError(f"env tools: latency of {', '.join(unknown)}: the tools are {', '.join(self.tools)}")
        try:
            self.form = Pattern(call, re.DOTALL)
        except re.error as error:
            raise StepError(f"env tools: invalid pattern `call` {call!r}: {error}") from error
        if self.form.groups != 2:
            raise StepError(f"env tools: the pattern `call` {call!r} needs two groups, the tool's name and the query")
        self.longest, self.latency = longest, latency

    def begin(self, row: Row, seed: int) -> "Conversation":
        """Return an episode of a problem."""
        return Conversation(self, row, seed)

    def parse(self, action: str) -> tuple[str, str] | None:
        """Return tool and query of a call, stripped; None for an answer.

        A turn that begins with the name of a tool but does not match, or not within the time limit, is a call with an
        empty query.
        """
        with contextlib.suppress(MatchTimeout):
            if match := self.form.fullmatch(action):
                return (match[1] or "").strip(), (match[2] or "").strip()
        word = re.match(r"\w*", action.strip())
        name = word[0] if word is not None else ""
        return (name, "") if name in self.tools else None

    def shorten(self, text: str) -> str:
        """Return a result, truncated to the limit."""
        text = text.strip()
        return text if len(text) <= self.longest else f"{text[: self.longest]}..."


class Conversation:
    """An episode with tools."""

    def __init__(self, environment: Environment, row: Mapping[str, Any], seed: int):
        self.environment, self.row, self.seed, self.turns = environment, row, seed, 0

    def step(self, action: str) -> Outcome:
        """Run the tool that the turn calls; raise StepError only for a fault of the machine, not of the model."""
        self.turns += 1
        call = self.environment.parse(action)
        if call is None:
            return Outcome(done=True)
        name, query = call
        text, ok = self._call(name, query)
        return Outcome(self.environment.shorten(text), seconds=self.environment.latency.get(name), ok=ok)

    def save(self) -> Row:
        """Return the number of turns: a call is a function of the row, the query and the seed of its turn."""
        return {"turns": self.turns}

    def restore(self, saved: Row) -> None:
        """Continue from what `save` returned."""
        self.turns = int(saved["turns"])

    def _call(self, name: str, query: str) -> tuple[str, bool]:
        tools = self.environment.tools
        if name not in tools:
            return f"no tool {name[:LONGEST_NAME]}; there are {', '.join(tools)}", False
        if not query:
            return f"write {name}: and what is asked", False
        rng = np.random.default_rng([self.seed, self.turns])
        try:
            return str(tools[name].ask(0, {"row": self.row, "rng": rng}, query)), True
        except StepError:
            raise
        except Exception as error:  # a user's tool may raise anything; the episode continues
            return f"error: {str(error) or type(error).__name__}", False
