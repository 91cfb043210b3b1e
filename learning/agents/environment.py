"""The environment of an agent: the one that it names, with the agent's tools and truncated observations."""

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
"""The function that calls a generated tool."""


class Environment:
    """The environment that an agent's folder describes."""

    def __init__(self, *, folder: str):
        agent = read_agent(Path(folder))
        self.inner = build_inner_environment(agent, list_inputs(Path(folder)))
        self.length = agent.context.observation_length

    def begin(self, row: Row, seed: int) -> Episode:
        """Return an episode of a problem."""
        return TruncatedEpisode(self.inner.begin(row, seed), self.length)


@dataclass
class TruncatedEpisode:
    """An episode with truncated observations."""

    episode: Episode
    length: int | None

    def step(self, action: str) -> Outcome:
        """Carry out a turn; return its outcome with the observation truncated."""
        outcome = self.episode.step(action)
        return outcome if self.length is None else replace(outcome, observation=outcome.observation[: self.length])


def build_inner_environment(agent: Agent, inputs: dict[str, Path]) -> EnvironmentProtocol:
    """Return the environment that an agent names, with its tools; raise StepError if it does not exist.

    An environment without the option `tools` ignores the toolkit.
    """
    if agent.environment is None:
        raise StepError("the agent has no environment")
    kind = find(agent.environment)
    named_use = {"use": agent.environment.use, **agent.environment.options}
    if "tools" not in inspect.signature(kind).parameters:
        return kind(**bound_options(kind.__init__, EnvUse.model_validate(named_use), "environment", inputs))
    made = [ToolUse.model_validate({"use": MADE, "tool": tool.model_dump()}) for tool in agent.made]
    tools = [*agent.toolkit, *made]
    ports = {f"environment.tools{port.removeprefix('toolkit')}": at for port, at in inputs.items()}
    use = EnvUse.model_validate(named_use | {"tools": tools})
    options = bound_options(kind.__init__, use, "environment", {**inputs, **ports})
    named = zip(options["tools"], agent.tool_names, strict=True)
    bound = [replace(one, name=name) if one.name == MADE else one for one, name in named]
    return kind(**{**options, "tools": bound})
