"""Inputs of a stage that runs an agent: the agent's environment in place of `env`, problems with its system text."""

from collections.abc import Sequence
from pathlib import Path

from learning.agents.folder import read_agent
from learning.agents.showing import ShownRows
from learning.data.rows import Row
from schemas.agent import Agent
from schemas.use import EnvUse

ENVIRONMENT = "learning.agents.environment:Environment"
"""Built from an agent's folder; a step's key covers it by the key of the agent."""


def make_env(agent: Agent, folder: Path | None) -> EnvUse | None:
    """Return the `env` of a stage for the agent in a folder; None if the agent has no environment."""
    if agent.environment is None or folder is None:
        return None
    own = {name: getattr(agent.environment, name) for name in EnvUse.model_fields if name != "use"}
    return EnvUse.model_validate({"use": ENVIRONMENT, "folder": str(folder), **own})


def load_env(folder: Path | None, env: EnvUse | None) -> EnvUse | None:
    """Return the environment of the agent in a folder, or without a folder the stage's own `env`.

    Raise StepError if the folder holds no agent.
    """
    return env if folder is None else make_env(read_agent(folder), folder)


def load_rows(folder: Path | None, rows: Sequence[Row]) -> Sequence[Row]:
    """Return the problems with the agent's system text, unchanged without a folder; raise StepError as `load_env`."""
    return rows if folder is None else ShownRows(rows, read_agent(folder))
