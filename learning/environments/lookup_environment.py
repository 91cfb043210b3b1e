"""Build the environment that a recipe names; separate from `making`, so that it imports no engine."""

import importlib
from collections.abc import Mapping
from pathlib import Path

from learning.environments.protocol import EnvironmentProtocol
from learning.lookup import bound_options
from schemas.errors import StepError
from schemas.use import EnvUse


def build_environment(use: EnvUse, inputs: Mapping[str, Path], port: str = "env") -> EnvironmentProtocol:
    """Return the environment that a recipe names: `guess` is `learning.environments.guess:Environment`.

    The other keys of `use` are the options of its constructor; functions that they name are bound, and references
    become the folders in `inputs` by path below `port`. Raise StepError if there is no such environment or option.
    """
    environment = find_environment_class(use)
    return environment(**bound_options(environment.__init__, use, port, inputs))


def find_environment_class(use: EnvUse) -> type:
    """Return the class of the environment that a recipe names; raise StepError if there is none."""
    module, _, name = use.use.partition(":") if ":" in use.use else (f"{use.home}.{use.use}", "", str(use.member))
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise StepError(f"env: use: {use.use}: {error}") from error
