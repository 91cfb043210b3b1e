"""From the name of an engine in a recipe to an engine in this process."""

import inspect
from typing import Any

from learning.api.spending import SpendingAccount
from learning.lookup import find, options_of
from learning.samples.engine_protocol import EngineProtocol
from schemas.use import EngineUse


def build_engine(use: EngineUse, policy: Any, desk: SpendingAccount | None = None) -> EngineProtocol:
    """Return an engine over a policy, in this process. Raise StepError.

    The keys beside `use` are the options of its constructor; `desk` is for one that asks a server.
    """
    engine = find(use)
    asks = [desk] if "desk" in inspect.signature(engine).parameters else []
    return engine(policy, *asks, **options_of(engine.__init__, use.options, use.use))
