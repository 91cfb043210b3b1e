"""The environment of an agent: the one it names, with the agent's tools, its answers shown as its context says."""

import inspect
from dataclasses import dataclass, replace
from pathlib import Path

from learning.agents.folder import list_inputs, read_agent
from learning.data.rows import Row
from learning.environments.protocol import EnvironmentProtocol, Episode, Outcome
from learning.lookup import bound_options, find
from schemas.agent import Agent
from schemas.errors import StepError
from schemas.use import EnvUse, ToolUse

MADE = "learning.agents.made:call_made_tool_"
"""How a tool that somebody wrote is called."""


class Environment:
    """What an agent's folder says."""

    def __init__(self, *, folder: str):
        agent = read_agent(Path(folder))
        self.inner = build_inner_environment(agent, list_inputs(Path(folder)))
        self.length = agent.context.observation_length

    def begin(self, row: Row, seed: int) -> Episode:
        """An episode of a problem."""
        return TruncatedEpisode(self.inner.begin(row, seed), self.length)


@dataclass
class TruncatedEpisode:
    """An episode whose observations are cut."""

    episode: Episode
    length: int | None

    def step(self, action: str) -> Outcome:
        """Carry out a turn."""
        found = self.episode.step(action)
        return found if self.length is None else replace(found, observation=found.observation[: self.length])


def build_inner_environment(agent: Agent, inputs: dict[str, Path]) -> EnvironmentProtocol:
    """The environment that an agent names, with its tools where it takes any. Raises StepError for what is not there.

    One that takes no tools leaves the toolkit unused.
    """
    if agent.environment is None:
        raise StepError("the agent has no environment")
    kind = find(agent.environment)
    said = {"use": agent.environment.use, **agent.environment.options}
    if "tools" not in inspect.signature(kind).parameters:
        return kind(**bound_options(kind.__init__, EnvUse.model_validate(said), "environment", inputs))
    made = [ToolUse.model_validate({"use": MADE, "tool": tool.model_dump()}) for tool in agent.made]
    tools = [*agent.toolkit, *made]
    ports = {f"environment.tools{port.removeprefix('toolkit')}": at for port, at in inputs.items()}
    use = EnvUse.model_validate(said | {"tools": tools})
    options = bound_options(kind.__init__, use, "environment", {**inputs, **ports})
    named = zip(options["tools"], agent.tool_names, strict=True)
    bound = [replace(one, name=name) if one.name == MADE else one for one, name in named]
    return kind(**{**options, "tools": bound})
