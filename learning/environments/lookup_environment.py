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
    folders: `inputs` has them by path below `port`. One that ends and scores its episodes itself gets `max_turns`.
    """
    kind: Any = find(use)
    environment = kind(**bound_options(kind.__init__, use, port, inputs))
    if hasattr(environment, "limit_turns"):
        environment.limit_turns(use.max_turns)
    return environment
