"""Tools behind one interface: a turn of the model calls one of them, or is its answer."""

import contextlib
import re
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.patterns import MatchTimeout, Pattern
from learning.environments.protocol import Outcome
from learning.lookup import Bound
from schemas.errors import StepError
from schemas.use import ToolUse

Seconds = Annotated[float, Field(ge=0)]
CALL = r"\s*([A-Za-z_]\w*):(.*)"
"""A word and a colon, then what is asked."""
LONGEST_NAME = 80
"""Characters of an unknown tool's name that are repeated."""


class Environment:
    """Carries out calls of tools, written `name: what is asked`; a turn that is no call is the answer and ends.

    A tool is called by the name of its function, wherever the recipe says that it lies. What cannot be carried out, an
    unknown name among it, is said to the model, which may try again. (VerlTool, Jiang et al. 2025.)
    """

    def __init__(
        self,
        *,
        tools: Annotated[list[ToolUse], Field(min_length=1)],
        longest: Annotated[int, Field(ge=1)] = 200,
        call: str = CALL,
        latency: dict[str, Seconds] = {},  # noqa: B006 (never changed; a recipe needs the default to be readable)
    ):
        """`longest` characters of a result are shown. `call` matches a whole turn that is one: tool and what is asked.

        `latency` states what calls of a tool take, in seconds, for a clock that does not measure them.
        """
        self.tools: dict[str, Bound] = {}
        for tool in tools:
            name = tool.name.rpartition(":")[2]
            if name in self.tools:
                raise StepError(f"env tools: two tools are called {name}; a tool is called by its function's name")
            self.tools[name] = tool
        if strange := sorted(latency.keys() - self.tools.keys()):
            raise StepError(f"env tools: latency of {', '.join(strange)}: the tools are {', '.join(self.tools)}")
        try:
            self.form = Pattern(call, re.DOTALL)
        except re.error as error:
            raise StepError(f"env tools: call {call!r}: {error}") from error
        if self.form.groups != 2:
            raise StepError(f"env tools: call {call!r} needs two groups, the tool's name and what is asked")
        self.longest, self.latency = longest, latency

    def begin(self, row: dict[str, Any], seed: int) -> "Conversation":
        """An episode about a problem."""
        return Conversation(self, row, seed)

    def parsed(self, action: str) -> tuple[str, str] | None:
        """Tool and what is asked, both without white space around; None for an answer.

        A turn that begins with the name of a tool is a call without anything asked, if it is not of the right form, or
        its form is not found within the pattern's time.
        """
        with contextlib.suppress(MatchTimeout):
            if found := self.form.fullmatch(action):
                return (found[1] or "").strip(), (found[2] or "").strip()
        first = re.match(r"\w*", action.strip())[0]
        return (first, "") if first in self.tools else None

    def shown(self, text: str) -> str:
        """A result, cut where it is too long."""
        text = text.strip()
        return text if len(text) <= self.longest else f"{text[: self.longest]}..."


class Conversation:
    """One problem under way."""

    def __init__(self, of: Environment, row: Mapping[str, Any], seed: int):
        self.of, self.row, self.seed, self.turns = of, row, seed, 0

    def step(self, action: str) -> Outcome:
        """Call what the turn calls; raises StepError where the machine cannot, never for what the model wrote."""
        self.turns += 1
        call = self.of.parsed(action)
        if call is None:
            return Outcome(done=True)
        name, query = call
        text, ok = self._called(name, query)
        return Outcome(self.of.shown(text), seconds=self.of.latency.get(name), ok=ok)

    def _called(self, name: str, query: str) -> tuple[str, bool]:
        if name not in self.of.tools:
            return f"no tool {name[:LONGEST_NAME]}; there are {', '.join(self.of.tools)}", False
        if not query:
            return f"write {name}: and what is asked", False
        rng = np.random.default_rng([self.seed, self.turns])
        try:
            return str(self.of.tools[name].ask(0, {"row": self.row, "rng": rng}, query)), True
        except StepError:
            raise
        except Exception as error:  # whatever a tool of somebody's own raises, the episode goes on
            return f"error: {str(error) or type(error).__name__}", False
