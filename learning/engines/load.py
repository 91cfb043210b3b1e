"""From the name of an engine in a recipe to the engine: `torch` is `learning.engines.torch:Engine`."""

import importlib
from typing import Any

from learning.engines.protocol import EngineProtocol
from learning.lookup import options_of
from schemas.errors import StepError
from schemas.use import EngineUse


def make_engine(use: EngineUse, policy: Any) -> EngineProtocol:
    """An engine over a policy; the keys beside `use` are the options of its constructor. Raises StepError."""
    module, _, name = use.use.partition(":") if ":" in use.use else (f"{use.home}.{use.use}", "", "Engine")
    try:
        engine = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise StepError(f"engine: use: {use.use}: {error}") from error
    return engine(policy, **options_of(engine.__init__, use.options, use.use))
