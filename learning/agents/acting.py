"""How a stage acts as an agent: its environment in the place of `env`, its problems as the agent's model sees them."""

from collections.abc import Sequence
from pathlib import Path

from learning.agents.folder import read_agent
from learning.agents.showing import ShownRows
from learning.data.rows import Row
from schemas.agent import Agent
from schemas.use import EnvUse

ENVIRONMENT = "learning.agents.environment:Environment"
"""Made from an agent's folder; a step's key holds it by the agent's own."""


def make_env(agent: Agent, folder: Path | None) -> EnvUse | None:
    """What the `env` of a stage is for an agent at a folder; None where nothing answers its turns."""
    if agent.environment is None or folder is None:
        return None
    own = {name: getattr(agent.environment, name) for name in EnvUse.model_fields if name != "use"}
    return EnvUse.model_validate({"use": ENVIRONMENT, "folder": str(folder), **own})


def load_env(folder: Path | None, env: EnvUse | None) -> EnvUse | None:
    """What answers the turns of a stage: the agent at a folder, or without one the stage's own `env`.

    Raises StepError where there is no agent.
    """
    return env if folder is None else make_env(read_agent(folder), folder)


def load_rows(folder: Path | None, rows: Sequence[Row]) -> Sequence[Row]:
    """The problems as the model of the agent at a folder sees them; as they are without one. Raises StepError."""
    return rows if folder is None else ShownRows(rows, read_agent(folder))
