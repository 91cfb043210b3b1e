"""From the name of an environment in a recipe to the environment; what plays in it is another matter, and heavier."""

from collections.abc import Mapping
from pathlib import Path

from learning.environments.protocol import EnvironmentProtocol
from learning.lookup import bound_options, find
from schemas.use import EnvUse


def build_environment(use: EnvUse, inputs: Mapping[str, Path], port: str = "env") -> EnvironmentProtocol:
    """The environment that a recipe names: `guess` is `learning.environments.guess:Environment`. Raises StepError.

    The keys beside `use` are the options of its constructor; functions that they name are bound, and references are
    folders: `inputs` has them by path below `port`.
    """
    made = find(use)
    return made(**bound_options(made.__init__, use, port, inputs))
