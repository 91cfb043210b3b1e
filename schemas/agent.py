"""An agent: its environment, its toolkit and what it is shown, each apart, so that one is swapped without the others.

A stage of kind `agent` writes it as an artifact, from which `practice`, `rl` and `evaluate` take the same settings.
"""

from typing import Annotated

from pydantic import Field

from schemas.base import JsonObject, Schema
from schemas.use import EnvUse, ToolUse, Use

NAME = r"^[a-z][a-z0-9_]{0,31}$"
MAX_TEXT = 20_000


class AgentEnvUse(EnvUse):
    """Answers an agent's turns; its tools are those of the agent's toolkit."""

    withheld = frozenset({"tools"})


class AuthorUse(Use):
    """Writes tools and settings of an agent for a task."""

    home = ("learning.agents.authors",)
    asks = frozenset({"task", "toolkit", "refused", "attempt", "rng", "desk"})


class ExtractorUse(Use):
    """Says what there is to know after a group of rollouts whose scores differ: the list of experiences, anew."""

    home = ("learning.agents.extractors",)
    asks = frozenset({"row", "rollouts", "experiences", "rng", "step", "state", "desk", "sampler"})


class Case(Schema):
    """One unit test of a tool."""

    query: str
    """What the tool is asked."""
    answer: str
    """What it has to give, to the letter."""


class MadeTool(Schema):
    """A tool that somebody wrote: it runs in the sandbox and nowhere else, in its tests and when it is called later."""

    name: str = Field(pattern=NAME)
    """What it is called by."""
    description: str = ""
    """What it does, in a sentence."""
    code: str = Field(min_length=1, max_length=MAX_TEXT)
    """Python that defines a function of the tool's name: it takes the query, a text, and gives a text."""
    tests: list[Case] = Field(min_length=1)
    """Its unit tests; all must pass."""
    seconds: float = Field(default=5.0, gt=0, le=60)
    """What one call may take."""
    memory_mb: int = Field(default=256, ge=64)
    """What one call may hold."""


class AgentContext(Schema):
    """What the model is shown beside the problem."""

    system: str = Field(default="", max_length=MAX_TEXT)
    """Text of the system message."""
    heading: str = ""
    """Line above the experiences, where there are any."""
    experiences: int = Field(default=16, ge=0)
    """How many experiences are shown at most, the latest; 0 shows none."""
    observation_length: int | None = Field(default=None, ge=1)
    """Characters of what the environment answers that are shown, from its beginning; null: all."""


class Draft(Schema):
    """What an author hands in: nothing of it is taken before it was checked."""

    description: str = ""
    """What the agent is for; empty: the task."""
    tools: list[JsonObject] = []
    """Tools as in `MadeTool`; each is checked for itself, so that one that is wrong takes no other with it."""
    toolkit: list[str] | None = None
    """Names of the given tools that the agent keeps; null: all."""
    context: AgentContext = AgentContext()
    """What the author says of it; keys that it leaves out stay as they are."""


class Agent(Schema):
    """A whole agent, as its artifact holds it."""

    description: str = ""
    """What it is for."""
    environment: AgentEnvUse | None = None
    """What answers its turns; null: nothing, a completion is the answer."""
    toolkit: list[ToolUse] = []
    """Tools of ours, by name or import path; handed to an environment that takes `tools`."""
    made: list[MadeTool] = []
    """Tools that somebody wrote for it."""
    context: AgentContext = AgentContext()
    """What the model is shown beside the problem."""
    experiences: list[Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]] = []
    """What practice taught it, the oldest first."""

    @property
    def tool_names(self) -> list[str]:
        """What its tools are called by: those of ours by the name of their function, in their order."""
        return [use.use.replace(":", ".").rpartition(".")[2] for use in self.toolkit] + [one.name for one in self.made]
