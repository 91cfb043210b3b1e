"""Build the engine that a recipe names, in this process."""

import importlib
import inspect
from typing import Any

from learning.api.spending import SpendingAccount
from learning.lookup import options_of
from learning.samples.engine_protocol import EngineProtocol
from schemas.errors import StepError
from schemas.use import EngineUse


def build_engine(use: EngineUse, policy: Any, desk: SpendingAccount | None = None) -> EngineProtocol:
    """Return an engine over a policy, in this process; raise StepError if there is no such engine.

    The other keys of `use` are the options of its constructor; `desk` is for an engine that sends requests to a server.
    """
    module, _, name = use.use.partition(":") if ":" in use.use else (f"{use.home}.{use.use}", "", "Engine")
    try:
        engine = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise StepError(f"engine: use: {use.use}: {error}") from error
    arguments = [policy, desk] if "desk" in inspect.signature(engine).parameters else [policy]
    return engine(*arguments, **options_of(engine.__init__, use.options, use.use))
