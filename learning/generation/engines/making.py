"""Build the engine that a recipe names, in this process."""

import inspect
from typing import Any

from learning.api.spending import SpendingAccount
from learning.lookup import find, options_of
from learning.samples.engine_protocol import EngineProtocol
from schemas.use import EngineUse


def build_engine(use: EngineUse, policy: Any, desk: SpendingAccount | None = None) -> EngineProtocol:
    """Return an engine over a policy, in this process; raise StepError if there is no such engine.

    The other keys of `use` are the options of its constructor; `desk` is for an engine that sends requests to a server.
    """
    engine: Any = find(use)
    arguments = [policy, desk] if "desk" in inspect.signature(engine).parameters else [policy]
    return engine(*arguments, **options_of(engine.__init__, use.options, use.use))
