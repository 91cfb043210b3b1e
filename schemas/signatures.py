"""What a slot's function takes, read from its source: nothing is imported, so that checking a recipe costs no torch.

The star is the border: parameters before it are supplied by the loop, those after it are the recipe's options.
`learning.lookup` binds the same for real.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional

from pydantic import BaseModel, ConfigDict, create_model

from schemas.addresses import AddressError, address, fits, split_supplied, supplies
from schemas.annotations import Unknown, literal, type_of
from schemas.modules import Function, Module, ModuleError, load, modules_of
from schemas.renamed import now_called, renamed_function
from schemas.suggestions import LONGEST, nearest, suggest
from schemas.use import Use

MAX_HOPS = 8
OWN = "code of your own is package.module:function"
NAMED = re.compile(r"[a-z][a-z0-9_]*_[TP]")
"""What may be a column of an auxiliary, whose names only the stage knows."""


class SignatureError(Exception):
    """A name that leads to no usable function; `advice` says what to do."""

    def __init__(self, message: str, advice: str = ""):
        self.advice = advice
        super().__init__(message)


@dataclass(frozen=True)
class Option:
    """One thing a recipe may set; `has_default` without a literal `default` leaves the default to the function."""

    type: Any
    required: bool
    default: Any = None
    is_literal: bool = True


@dataclass(frozen=True, eq=False)
class Signature:
    """A function that a recipe can name; read once per text of its module, so that identity is equality."""

    module: str
    name: str
    doc: str
    supplied: tuple[str, ...]
    options: dict[str, Option]

    @property
    def summary(self) -> str:
        """First line of the documentation."""
        return self.doc.partition("\n")[0].strip()


def signature(slot: type[Use], name: str, folders: tuple[Path, ...] = ()) -> Signature:
    """Return the signature of what `name` means in a slot. Raise SignatureError with the nearest name."""
    try:
        module, function = address(slot, name)
    except AddressError as error:
        if slot.home and (new := renamed_function(name, names(slot))) is not None:
            raise SignatureError(now_called(name, new), f"write `{new}` in its place") from None
        raise SignatureError(str(error), _near(slot, name) if slot.home else OWN) from None
    house = ":" not in name
    try:
        found = _find(module, function, folders, 0, is_class=bool(slot.member))
        placed, named = split_supplied(slot, found.supplied)
        if slot.takes is not None and (placed != slot.takes if house else len(placed) != len(slot.takes)):
            given = ", ".join(slot.takes) or "nothing"
            said = f"`{name}` takes ({', '.join(found.supplied)}) before the `*`, but is given {given}"
            raise SignatureError(said, _near(slot, name) if house else "what a recipe sets belongs after the `*`")
        if strange := [n for n in named if not supplies(slot, n) and (house or not may_be_named(slot, n))]:
            said = f"`{name}` asks for {', '.join(strange)}, which this slot does not supply"
            raise SignatureError(said, _near(slot, name) if house else suggest(strange[0], sorted(slot.asks), "names"))
        return _without(found, slot.withheld) if slot.withheld else found
    except ModuleError as error:
        advice = _near(slot, name) if house else f"the folders searched: {_searched(folders)}"
        raise SignatureError(str(error), advice) from None
    except KeyError:
        advice = suggest(function, public_functions(module, folders), "functions there")
        raise SignatureError(f"module `{module}` has no function `{function}`", advice) from None


@lru_cache(maxsize=1024)
def _without(found: Signature, withheld: frozenset[str]) -> Signature:
    return replace(found, options={name: option for name, option in found.options.items() if name not in withheld})


def names(slot: type[Use]) -> list[str]:
    """Return every name of our own that a slot knows, sorted."""
    return sorted({name for name, _ in definitions(slot)})


def definitions(slot: type[Use]) -> Iterator[tuple[str, str]]:
    """Yield every name of our own that a slot knows, with the module that defines it."""
    for module in dict.fromkeys(module for home in slot.home for module in modules_of(home)):
        family = module.rpartition(".")[2]
        read = load(module)
        if slot.member:
            yield from ((family, module) for _ in range(slot.member in read.classes))
        else:
            own = [name for name in read.functions if not name.startswith("_") and fits(slot, read.functions[name])]
            yield from ((f"{family}.{name}" if slot.qualified else name, module) for name in own)


def signatures(slot: type[Use]) -> Iterator[tuple[str, Signature]]:
    """Every name that a slot knows, with its signature."""
    for name in names(slot):
        yield name, signature(slot, name)


@lru_cache(maxsize=1024)
def options_model(found: Signature) -> type[BaseModel]:
    """The options as a pydantic model that refuses unknown keys."""
    fields: dict[str, Any] = {}
    for name, option in found.options.items():
        nullable = not option.required and option.default is None
        kind = Optional[option.type] if nullable else option.type  # noqa: UP045 — computed
        fields[name] = (kind, ... if option.required else option.default)
    config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False, validate_default=True)
    return create_model(f"{found.module}.{found.name}", __config__=config, **fields)


def _find(module: str, name: str, folders: tuple[Path, ...], hops: int, is_class: bool) -> Signature:
    read = load(module, folders)
    if is_class or name in read.classes:
        return _constructor(read, name)
    if name in read.functions and not name.startswith("_"):
        return _read(read, read.functions[name], skip=0)
    if name in read.imports and hops < MAX_HOPS:
        source, original = read.imports[name]
        return _find(source, original, (read.file.parent, *folders), hops + 1, is_class)
    raise KeyError(name)


@lru_cache(maxsize=1024)
def _constructor(read: Module, name: str) -> Signature:
    kind = read.classes[name]
    made = next((n for n in kind.body if isinstance(n, Function) and n.name == "__init__"), None)
    if made is None:
        return Signature(read.name, name, ast.get_docstring(kind) or "", (), {})
    found = _read(read, made, skip=1)
    return Signature(read.name, name, ast.get_docstring(kind) or found.doc, found.supplied, found.options)


@lru_cache(maxsize=1024)
def _read(read: Module, function: Function, skip: int) -> Signature:
    spec = function.args
    if spec.kwarg is not None:
        advice = "give every option a name, annotation and default after the `*`"
        raise SignatureError(f"the options of `{function.name}` cannot be checked: `**{spec.kwarg.arg}`", advice)
    options = {a.arg: _option(a, d, read) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)}
    supplied = tuple(a.arg for a in [*spec.posonlyargs, *spec.args][skip:])
    return Signature(read.name, function.name, ast.get_docstring(function) or "", supplied, options)


def _option(argument: ast.arg, default: ast.expr | None, read: Module) -> Option:
    kind = type_of(argument.annotation, read)
    if default is None:
        return Option(kind, required=True)
    try:
        return Option(kind, required=False, default=literal(default, read))
    except (Unknown, ModuleError):
        return Option(kind, required=False, is_literal=False)


def public_functions(module: str, folders: tuple[Path, ...]) -> list[str]:
    """Functions of a module that a recipe can name: its own and those it takes from its neighbours."""
    try:
        read = load(module, folders)
    except ModuleError:
        return []
    package = module.partition(".")[0]
    taken = [n for n, (source, _) in read.imports.items() if source.startswith(f"{package}.") and n.islower()]
    own = [n for n in read.functions if not n.startswith("_")]
    return own + [n for n in taken if not n.startswith("_") and _is_function(read, n)]


def _is_function(read: Module, name: str) -> bool:
    source, original = read.imports[name]
    try:
        return original in load(source).functions
    except ModuleError:
        return False


def may_be_named(slot: type[Use], name: str) -> bool:
    """Whether an auxiliary of the stage could give a slot's function what it asks for by a name."""
    return "auxiliary_T" in slot.asks and NAMED.fullmatch(name) is not None


def _near(slot: type[Use], name: str) -> str:
    known = names(slot)
    plain = None
    if len(name) <= LONGEST:
        plain = nearest(name, known) or nearest(name.rpartition(".")[2], [k.rpartition(".")[2] for k in known])
    advice = suggest(name, known, "names here")
    if plain and "did you mean" not in advice:
        full = next(k for k in known if k == plain or k.endswith(f".{plain}"))
        advice = f"did you mean `{full}`? {advice}"
    return f"{advice}; {OWN}"


def _searched(folders: tuple[Path, ...]) -> str:
    return ", ".join(dict.fromkeys(str(f) for f in folders)) or "Python's path"
