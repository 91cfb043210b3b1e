"""From a name in a recipe to the function it names: the name is the address, there is no registry.

`schemas.signatures` checks the same from the source text, without importing anything; this module imports and binds.
An option may itself name a function (`of: {use: answers.exact}`): it is bound too, and passed as an `Inner`.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints
from zlib import crc32

import numpy as np
from pydantic import ConfigDict, ValidationError, create_model

from schemas import use as slots
from schemas.addresses import MODEL_READERS, AddressError, find_address
from schemas.errors import StepError
from schemas.number_schedules import SCHEDULES, Controlled, Number, settle, value_at
from schemas.package import import_path
from schemas.references import Reference
from schemas.use import Use


class Supplies(Protocol):
    """What the loop can supply to a slot's function by the names of its parameters; a mapping is one."""

    def __contains__(self, name: object, /) -> bool:
        """Return whether the name can be supplied."""
        ...

    def __getitem__(self, name: str, /) -> Any:
        """Return what the name stands for. Raise KeyError."""
        ...

    def __iter__(self) -> Iterator[str]:
        """Yield every name."""
        ...


class Overlay:
    """Supplies with some names added or replaced."""

    def __init__(self, base: Supplies, more: Mapping[str, Any]) -> None:
        self.base, self.more = base, more

    def __contains__(self, name: object, /) -> bool:
        return name in self.more or name in self.base

    def __getitem__(self, name: str, /) -> Any:
        return self.more[name] if name in self.more else self.base[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys((*self.more, *self.base))


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
    optional: bool = False
    """Whether a reward is left out of the sum where it gives None."""
    called: str = ""
    """The name by which a model calls it, where it is a tool to which the recipe gives one."""

    @cached_property
    def asks(self) -> list[str]:
        """Names of the parameters before the star without a default: what the loop supplies."""
        return [parameter.name for parameter in self._list_supplied() if parameter.default is parameter.empty]

    @cached_property
    def may_ask(self) -> list[str]:
        """Names of the parameters before the star with a default: what the loop supplies where it has it."""
        return [parameter.name for parameter in self._list_supplied() if parameter.default is not parameter.empty]

    def _list_supplied(self) -> list[inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters.values()
        return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def at(self, step: int, supplies: Supplies | None = None) -> Callable[..., Any]:
        """Return the function with its options at a step (0-based); functions among them are asked with `supplies`."""

        def current(value: Any) -> Any:
            if isinstance(value, (*SCHEDULES, Controlled)):
                return value_at(value, step)
            return Inner(value, step, {} if supplies is None else supplies) if isinstance(value, Bound) else value

        return partial(self.function, **{name: _each(value, current) for name, value in self.options.items()})

    def ask(self, step: int, supplies: Supplies, *placed: Any) -> Any:
        """Call with `placed` by place and the rest by name. Raise StepError for a name that cannot be supplied."""
        named = (self._supplied(name, step, supplies) for name in self.asks[len(placed) :])
        known = {name: self._supplied(name, step, supplies) for name in self.may_ask if name in supplies}
        return self.at(step, supplies)(*placed, *named, **known)

    def _supplied(self, name: str, step: int, supplies: Supplies) -> Any:
        """Return what a parameter asks for: `state` is this slot's own, `rng` the stream of this slot and step."""
        if name == "state" and "states" in supplies:
            return supplies["states"].setdefault(self.slot, {})
        if name == "rng" and "seed" in supplies:
            number = supplies["round"] if "round" in supplies else 0  # noqa: SIM401 — supplies need not have `get`
            return np.random.default_rng([supplies["seed"], step, number, crc32(self.slot.encode())])
        if name not in supplies:
            available = ", ".join(sorted(supplies))
            raise StepError(f"use: {self.name}: asks for {name}; here there is {available}")
        return supplies[name]

    def settled(self, controls: Mapping[str, float]) -> "Bound":
        """Return the same with the numbers that controllers give."""

        def current(value: Any) -> Any:
            return value.settled(controls) if isinstance(value, Bound) else settle(value, controls)

        options = {name: _each(value, current) for name, value in self.options.items()}
        return replace(self, options=options, weight=settle(self.weight, controls))

    def __call__(self, *supplied: Any) -> Any:
        """Call at step 0."""
        return self.at(0)(*supplied)


@dataclass(frozen=True)
class Inner:
    """A function that an option of another one names, with what the loop supplied to that one."""

    bound: Bound
    step: int
    supplies: Supplies

    @property
    def weight(self) -> float:
        """Factor that the recipe gives it, at this step."""
        return value_at(self.bound.weight, self.step)

    def __call__(self, **replaced: Any) -> Any:
        """Call with what it asks for by name, some of it replaced. Raise StepError for a name that is not supplied."""
        return self.bound.ask(self.step, Overlay(self.supplies, replaced))


if TYPE_CHECKING:
    DuelFunction = ProblemsFunction = PromptSamplerFunction = RewardFunction = TeacherFunction = Inner
    TokenizerFunction = ToolFunction = Bound
else:
    DuelFunction, ProblemsFunction, PromptSamplerFunction = slots.DuelUse, slots.ProblemsUse, slots.PromptSamplerUse
    RewardFunction, TeacherFunction, ToolFunction = slots.RewardUse, slots.TeacherUse, slots.ToolUse
    TokenizerFunction = slots.TokenizerUse
"""Options of a slot's function: a recipe names a function of another slot, and this one gets it bound."""


def asked_of(bound: Bound) -> frozenset[str]:
    """Return what a function asks for, and what the functions that its options name ask for."""
    return frozenset(bound.asks).union(*(asked_of(inner) for inner in _inner(bound.options.values())))


def _inner(values: Iterable[Any]) -> Iterator[Bound]:
    for value in values:
        if isinstance(value, Bound):
            yield value
        elif isinstance(value, dict | list):
            yield from _inner(value.values() if isinstance(value, dict) else value)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return `change` of a value, or of every entry of one that is a list or a map."""
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    return [_each(item, change) for item in value] if isinstance(value, list) else change(value)


def find(use: Use) -> Callable[..., Any]:
    """Return the function or class that `use` names. Raise StepError when there is none."""
    try:
        module, name = find_address(type(use), use.use)
        function = getattr(importlib.import_module(import_path(module)), name, None)
    except (AddressError, ModuleNotFoundError) as error:
        missing = f"no module {error.name!r}" if isinstance(error, ModuleNotFoundError) else str(error)
        raise StepError(f"use: {use.use}: {missing}") from error
    except (Exception, SystemExit) as error:  # the user's own module may raise anything, and call `exit()`
        why = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise StepError(f"use: {use.use}: its module cannot be imported: {why}") from error
    if not callable(function):
        own = f"; Python has a module {module} of its own: give your file another name"
        raise StepError(
            f"use: {use.use}: {module} has no function {name!r}{own if module in sys.stdlib_module_names else ''}"
        )
    return function


class HasOptionalCode(Protocol):
    """A stage with parts that only some stages use."""

    def optional_code(self, asked: Collection[str] = ()) -> Mapping[str, tuple[str, str]]:
        """Return module and name of each part that this stage uses, if its functions ask for these names."""
        ...


def load_optional(stage: HasOptionalCode, part: str, asked: Collection[str] = ()) -> Callable[..., Any] | None:
    """Return an optional part of a stage whose functions ask for some names; None if the stage does not use it."""
    code = stage.optional_code(asked)
    if part not in code:
        return None
    module, name = code[part]
    return getattr(importlib.import_module(import_path(module)), name)


def load_model_reader(form: str) -> Callable[..., Any]:
    """Return the function that treats models of a rare form, imported only where an input has this form."""
    module, name = MODEL_READERS[form]
    return getattr(importlib.import_module(import_path(module)), name)


def options_of(function: Callable[..., Any], given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return `given`, validated against the parameters after the star of `function`, with defaults filled in."""
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


def build(use: Use, *placed: Any, **offered: Any) -> Any:
    """Return an object of the class that `use` names, such as an engine, with its options.

    Its constructor gets what is `placed`, and what is `offered` under the names that it asks for. Raise StepError.
    """
    constructor = find(use)
    asked = inspect.signature(constructor).parameters
    taken = {name: value for name, value in offered.items() if name in asked}
    of: Any = constructor
    return of(*placed, **taken, **options_of(of.__init__, use.options, use.use))


def bind(use: Use, port: str = "", inputs: Mapping[str, Path] | None = None) -> Bound:
    """Bind what `use` names; options that are references become folders: `inputs` has them by path below `port`."""
    function = find(use)
    options = bound_options(function, use, port, inputs)
    weight, optional = getattr(use, "weight", 1.0), getattr(use, "optional", False)
    return Bound(use.use, function, options, port, weight, optional, getattr(use, "called", ""))


def bound_options(
    function: Callable[..., Any], use: Use, port: str, inputs: Mapping[str, Path] | None = None
) -> dict[str, Any]:
    """Return the validated options of what `use` names: folders for references, bound functions for names."""
    options = options_of(function, use.options, use.use)
    return {name: _resolved(value, f"{port}.{name}", inputs or {}) for name, value in options.items()}


def _name_folders(use: Use, path: str, inputs: Mapping[str, Path]) -> Use:
    """Return a description whose references, those below `path` in `inputs`, are absolute folders."""
    folders = {port: folder for port, folder in inputs.items() if port.startswith(f"{path}.")}
    if not folders:
        return use
    named = use.model_dump(by_alias=True)
    for port, folder in folders.items():
        place: Any = named
        *above, last = port.removeprefix(f"{path}.").split(".")
        for part in above:
            place = place[int(part) if isinstance(place, list) else part]
        place[int(last) if isinstance(place, list) else last] = str(folder.resolve())
    return type(use).model_validate(named)


def _resolved(value: Any, path: str, inputs: Mapping[str, Path]) -> Any:
    """Return an option with folders for references and bound functions for names; engines stay descriptions."""
    if isinstance(value, Reference):
        return Path(value) if value.startswith("/") else inputs[path]
    if isinstance(value, Use):
        return _name_folders(value, path, inputs) if value.member else bind(value, path, inputs)
    if isinstance(value, dict):
        return {key: _resolved(item, f"{path}.{key}", inputs) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, f"{path}.{i}", inputs) for i, item in enumerate(value)]
    return value
