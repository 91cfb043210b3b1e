"""An agent: environment, toolkit and context, kept separately so that each can be replaced without the others.

A stage of kind `agent` writes it as an artifact, from which `practice`, `rl` and `evaluate` read the same settings.
"""

from typing import Annotated

from pydantic import Field

from schemas.base import JsonObject, Schema
from schemas.use import EnvUse, ToolUse, Use

NAME = r"^[a-z][a-z0-9_]{0,31}$"
MAX_TEXT = 20_000


class AgentEnvUse(EnvUse):
    """Answers an agent's turns; its tools come from the agent's toolkit."""

    withheld = frozenset({"tools"})


class AuthorUse(Use):
    """Writes tools and context of an agent for a task."""

    home = ("learning.agents.authors",)
    asks = frozenset({"task", "toolkit", "refused", "attempt", "rng", "account"})


class ExtractorUse(Use):
    """Returns the new list of experiences after a group of rollouts whose scores differ."""

    home = ("learning.agents.extractors",)
    asks = frozenset({"row", "rollouts", "experiences", "rng", "step", "state", "account", "sampler"})


class Case(Schema):
    """One unit test of a tool."""

    query: str
    """Input of the tool."""
    answer: str
    """Expected output, compared exactly."""


class MadeTool(Schema):
    """A tool given as code; its tests and all later calls run only in the sandbox."""

    name: str = Field(pattern=NAME)
    """Name by which the model calls the tool."""
    description: str = ""
    """What the tool does, in one sentence."""
    code: str = Field(min_length=1, max_length=MAX_TEXT)
    """Python code with a function of the tool's name, which takes the query as a string and returns a string."""
    tests: list[Case] = Field(min_length=1)
    """Unit tests; all must pass."""
    seconds: float = Field(default=5.0, gt=0, le=60)
    """Time limit of one call in seconds."""
    memory_mb: int = Field(default=256, ge=64)
    """Memory limit of one call in MB."""


class AgentContext(Schema):
    """What the prompt contains in addition to the problem."""

    system: str = Field(default="", max_length=MAX_TEXT)
    """Text of the system message."""
    heading: str = ""
    """Line above the experiences, if there are any."""
    experiences: int = Field(default=16, ge=0)
    """Most experiences in the prompt, the latest ones; 0: none."""
    observation_length: int | None = Field(default=None, ge=1)
    """Most characters of an environment's answer that the model sees, from its beginning; null: all."""


class Draft(Schema):
    """Output of an author; each part is checked before it is used."""

    description: str = ""
    """Purpose of the agent; empty: the text of the task."""
    tools: list[JsonObject] = []
    """Tools as in `MadeTool`; each is checked on its own, so that an invalid tool does not affect the others."""
    toolkit: list[str] | None = None
    """Names of the given tools that the agent keeps; null: all."""
    context: AgentContext = AgentContext()
    """Context of the agent; keys that the author leaves out keep their values."""


class Agent(Schema):
    """A complete agent, as stored in its artifact."""

    description: str = ""
    """Purpose of the agent."""
    environment: AgentEnvUse | None = None
    """Environment that answers its turns; null: no environment, a completion is the final answer."""
    toolkit: list[ToolUse] = []
    """Tools by name or import path, passed to an environment that takes `tools`."""
    made: list[MadeTool] = []
    """Tools given as code."""
    context: AgentContext = AgentContext()
    """What the prompt contains in addition to the problem."""
    experiences: list[Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]] = []
    """Experiences gained by practice, oldest first."""

    @property
    def tool_names(self) -> list[str]:
        """Names of its tools in order; a tool from `toolkit` has the name of its function."""
        return [use.use.replace(":", ".").rpartition(".")[2] for use in self.toolkit] + [
            tool.name for tool in self.made
        ]
