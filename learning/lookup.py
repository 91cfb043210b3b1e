"""From a name in a recipe to the function it names: the name is the address, there is no registry.

`schemas.signatures` checks the same from the source text, before anything is imported; here it is bound for real.
An option may itself name a function (`of: {use: answers.exact}`): it is bound too, and handed over as an `Inner`.
"""

import importlib
import inspect
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_type_hints
from zlib import crc32

import numpy as np
from pydantic import ConfigDict, ValidationError, create_model

from schemas.addresses import AddressError, address
from schemas.errors import StepError
from schemas.number_schedules import SCHEDULES, Controlled, Number, settle, value_at
from schemas.package import import_path
from schemas.references import Reference
from schemas.use import Use


@dataclass(frozen=True)
class Bound:
    """A function with the recipe's options; options that are schedules follow the step."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    slot: str = ""
    """Path of the slot in the stage."""
    weight: Number = 1.0
    """Factor that the recipe gives it, where its slot has one."""

    @cached_property
    def asks(self) -> list[str]:
        """Names of the parameters before the star: what is to be supplied."""
        parameters = inspect.signature(self.function).parameters.values()
        return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def at(self, step: int, have: Mapping[str, Any] | None = None) -> Callable[..., Any]:
        """The function with the options as they are at a step (0-based); those that are functions get `have`."""

        def now(value: Any) -> Any:
            if isinstance(value, (*SCHEDULES, Controlled)):
                return value_at(value, step)
            return Inner(value, step, have or {}) if isinstance(value, Bound) else value

        return partial(self.function, **{k: _each(v, now) for k, v in self.options.items()})

    def ask(self, step: int, have: Mapping[str, Any], *placed: Any) -> Any:
        """Call with `placed` by place and the rest by name, as asked for; raises StepError for what is not there."""
        return self.at(step, have)(*placed, *(self._given(name, step, have) for name in self.asks[len(placed) :]))

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

        def now(value: Any) -> Any:
            return value.settled(controls) if isinstance(value, Bound) else settle(value, controls)

        options = {k: _each(v, now) for k, v in self.options.items()}
        return replace(self, options=options, weight=settle(self.weight, controls))

    def __call__(self, *supplied: Any) -> Any:
        """Call at step 0."""
        return self.at(0)(*supplied)


@dataclass(frozen=True)
class Inner:
    """A function that an option of another one names, with what the loop gave that one."""

    bound: Bound
    step: int
    have: Mapping[str, Any]

    @property
    def weight(self) -> float:
        """Factor that the recipe gives it, now."""
        return value_at(self.bound.weight, self.step)

    def __call__(self, **instead: Any) -> Any:
        """Call with what it asks for by name, some of it replaced; raises StepError for what is not there."""
        return self.bound.ask(self.step, ChainMap(instead, self.have))  # type: ignore[arg-type]


def asked_of(bound: Bound) -> frozenset[str]:
    """What a function asks for, and what the functions that its options name ask for."""
    return frozenset(bound.asks).union(*(asked_of(inner) for inner in _inner(bound.options.values())))


def _inner(values: Iterable[Any]) -> Iterator[Bound]:
    for value in values:
        if isinstance(value, Bound):
            yield value
        elif isinstance(value, dict | list):
            yield from _inner(value.values() if isinstance(value, dict) else value)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """`change` applied to a value, or to every entry of one that is a list or a map."""
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    return [_each(item, change) for item in value] if isinstance(value, list) else change(value)


def find(use: Use) -> Callable[..., Any]:
    """Return the function or class that `use` names. Raise StepError when there is none."""
    try:
        module, name = address(type(use), use.use)
        found = getattr(importlib.import_module(import_path(module)), name, None)
    except (AddressError, ModuleNotFoundError) as error:
        missing = f"no module {error.name!r}" if isinstance(error, ModuleNotFoundError) else str(error)
        raise StepError(f"use: {use.use}: {missing}") from error
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
    return Bound(use.use, function, bound_options(function, use, port, inputs), port, getattr(use, "weight", 1.0))


def bound_options(
    function: Callable[..., Any], use: Use, port: str, inputs: Mapping[str, Path] | None = None
) -> dict[str, Any]:
    """The options of what `use` names, validated, with folders for references and bound functions for those named."""
    options = options_of(function, use.options, use.use)
    return {name: _resolved(value, f"{port}.{name}", inputs or {}) for name, value in options.items()}


def _resolved(value: Any, path: str, inputs: Mapping[str, Path]) -> Any:
    """An option with folders for references and bound functions for those it names; engines are made by their user."""
    if isinstance(value, Reference):
        return inputs[path]
    if isinstance(value, Use):
        return value if value.member else bind(value, path, inputs)
    if isinstance(value, dict):
        return {key: _resolved(item, f"{path}.{key}", inputs) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, f"{path}.{i}", inputs) for i, item in enumerate(value)]
    return value
