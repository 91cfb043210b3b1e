"""kind: agent — an environment, a toolkit and what the model is shown, as one artifact that later stages act with."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.agent import AgentContext, AgentEnvUse, AuthorUse, MadeTool
from schemas.endpoint import Capped
from schemas.stages.base import BaseStage, ReportSection
from schemas.use import ToolUse


class AgentStage(Capped, BaseStage):
    """Write an agent down, or let an author generate it; every tool with code of its own passes its tests first."""

    report_section: ClassVar = ReportSection(detail="written", may_be_empty=False)

    kind: Literal["agent"]
    environment: AgentEnvUse | None = None
    """What answers the model's turns; null: nothing, a completion is the answer."""
    toolkit: list[ToolUse] = []
    """Tools for an environment that takes `tools`; one that takes none leaves them unused."""
    made: list[MadeTool] = []
    """Tools with their code and tests; they run in the sandbox and nowhere else."""
    context: AgentContext = AgentContext()
    """What the model is shown beside the problem."""
    experiences: list[str] = []
    """What it knows already, the oldest first; `practice` adds to it."""
    task: str = ""
    """What the agent is for: what an author is told."""
    author: AuthorUse | None = None
    """Who writes further tools and the context for the task; null: all is said here."""
    max_attempts: int = Field(default=3, ge=1)
    """How often the author is asked: again for what was refused, with the reasons."""

    @model_validator(mode="after")
    def consistent(self) -> Self:
        """Tools stand in the toolkit alone, and an author is told what for."""
        if self.environment is not None and "tools" in self.environment.options:
            raise ValueError("`environment` names no tools: they stand in `toolkit`, so that one is swapped alone")
        if self.environment is None and (self.toolkit or self.made or self.author):
            raise ValueError("tools are called in an environment: give `environment: tools`, or one of your own")
        if (self.author is not None) != bool(self.task.strip()):
            raise ValueError("give `task` and `author` together: what the agent is for, and who writes it")
        names = [tool.name for tool in self.made]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"`made` has two tools called `{twice[0]}`")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the agent, and what became of everything that was written for it."""
        return {"agent": "agent", "report": "directory"}
