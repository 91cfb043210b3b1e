"""From a name in a recipe to the function it names: the name is the address, there is no registry.

`schemas.signatures` checks the same from the source text, before anything is imported; here it is bound for real.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints
from zlib import crc32

import numpy as np
from pydantic import ConfigDict, ValidationError, create_model

from schemas.errors import StepError
from schemas.references import Reference
from schemas.schedules import SCHEDULES, Controlled, settled, value_at
from schemas.use import Use


@dataclass(frozen=True)
class Bound:
    """A function with the recipe's options; options that are schedules follow the step."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    slot: str = ""
    """Path of the slot in the stage."""

    @property
    def asks(self) -> list[str]:
        """Names of the parameters before the star: what is to be supplied."""
        parameters = inspect.signature(self.function).parameters.values()
        return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def at(self, step: int) -> Callable[..., Any]:
        """The function with the options as they are at a step (0-based)."""
        numbers = (*SCHEDULES, Controlled)
        now = {k: value_at(v, step) if isinstance(v, numbers) else v for k, v in self.options.items()}
        return partial(self.function, **now)

    def ask(self, step: int, have: Mapping[str, Any], *placed: Any) -> Any:
        """Call with `placed` by place and the rest by name, as asked for; raises StepError for what is not there."""
        return self.at(step)(*placed, *(self._given(name, step, have) for name in self.asks[len(placed) :]))

    def _given(self, name: str, step: int, have: Mapping[str, Any]) -> Any:
        """`state` is this slot's own of `states`, `rng` this slot's and step's own of `seed`; all else is as it is."""
        if name == "state" and "states" in have:
            return have["states"].setdefault(self.slot, {})
        if name == "rng" and "seed" in have:
            places = [have["seed"], step, have.get("round", 0), crc32(self.slot.encode())]
            return np.random.default_rng(places)
        if name not in have:
            there = ", ".join(sorted(have))
            raise StepError(f"use: {self.name}: asks for {name}; here there is {there}")
        return have[name]

    def settled(self, controls: Mapping[str, float]) -> "Bound":
        """The same with the numbers that controllers give."""
        return replace(self, options={k: settled(v, controls) for k, v in self.options.items()})

    def __call__(self, *supplied: Any) -> Any:
        """Call at step 0."""
        return self.at(0)(*supplied)


def find(use: Use) -> Callable[..., Any]:
    """The function that `use` names; raises StepError when there is none."""
    if ":" in use.use:
        module, _, name = use.use.partition(":")
    else:
        family, _, name = use.use.rpartition(".")
        module = f"{use.home}.{family}" if family else str(use.home)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise StepError(f"use: {use.use}: no module {error.name!r}") from error
    if not callable(found):
        raise StepError(f"use: {use.use}: {module} has no function {name!r}")
    return found


def options_of(function: Callable[..., Any], given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`given` validated against the parameters after the star of `function`, defaults filled in."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), ... if p.default is inspect.Parameter.empty else p.default)
        for p in inspect.signature(function).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    model = create_model("Options", __config__=config, **fields)
    try:
        made = model.model_validate(dict(given))
    except ValidationError as error:
        raise StepError(f"use: {name}: {error}") from error
    return {field: getattr(made, field) for field in fields}


def bind(use: Use, port: str = "", inputs: Mapping[str, Path] | None = None) -> Bound:
    """Bind what `use` names; options that are references become folders: `inputs` has them by path below `port`."""
    function = find(use)
    options = options_of(function, use.options, use.use)
    for name, value in options.items():
        if isinstance(value, Reference):
            options[name] = (inputs or {})[f"{port}.{name}"]
    return Bound(use.use, function, options, port)
