"""kind: agent — an environment, a toolkit and the context of the model, as one artifact that later stages use."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.agent import AgentContext, AgentEnvUse, AuthorUse, MadeTool
from schemas.endpoint import Capped
from schemas.stages.base import BaseStage, ReportSection
from schemas.use import ToolUse


class AgentStage(Capped, BaseStage):
    """Define an agent, or let an author generate it; a tool with its own code is accepted only if its tests pass."""

    report_section: ClassVar = ReportSection(detail="written", may_be_empty=False)

    kind: Literal["agent"]
    environment: AgentEnvUse | None = None
    """Environment that answers the model's turns; null: no environment, a completion is the final answer."""
    toolkit: list[ToolUse] = []
    """Tools for an environment that takes `tools`; an environment without that option does not use them."""
    made: list[MadeTool] = []
    """Tools given as code with unit tests; they run only in the sandbox."""
    context: AgentContext = AgentContext()
    """What the prompt contains in addition to the problem."""
    experiences: list[str] = []
    """Experiences that the agent starts with, oldest first; `practice` adds further ones."""
    task: str = ""
    """Description of the agent's task, given to the author."""
    author: AuthorUse | None = None
    """Function that writes further tools and the context for `task`; null: the agent is fully defined here."""
    max_attempts: int = Field(default=3, ge=1)
    """Most calls of the author; each further call lists what was refused and why."""

    @model_validator(mode="after")
    def check_consistency(self) -> Self:
        """Require that only `toolkit` names tools, and that `task` and `author` are given together."""
        if self.environment is not None and "tools" in self.environment.options:
            raise ValueError("`environment` must not list `tools`; list them in `toolkit`")
        if self.environment is None and (self.toolkit or self.made or self.author):
            raise ValueError("tools are called in an environment: give `environment: tools`, or one of your own")
        if (self.author is not None) != bool(self.task.strip()):
            raise ValueError("give `task` and `author` together, or neither")
        names = [tool.name for tool in self.made]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"`made` has two tools called `{twice[0]}`")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the agent, and a report on every tool and context that was written for it."""
        return {"agent": "agent", "report": "directory"}
