"""Build the environment that a recipe names; light, since the engine that plays in it is imported elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learning.environments.protocol import EnvironmentProtocol
from learning.lookup import bound_options, find
from schemas.use import EnvUse


def build_environment(use: EnvUse, inputs: Mapping[str, Path], port: str = "env") -> EnvironmentProtocol:
    """Return the environment that a recipe names. Raise StepError if there is none.

    The other keys of `use` are the options of its constructor; functions that they name are bound, and references are
    folders: `inputs` has them by path below `port`.
    """
    environment: Any = find(use)
    return environment(**bound_options(environment.__init__, use, port, inputs))
