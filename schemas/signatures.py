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

from schemas.annotations import Unknown, literal, type_of
from schemas.modules import Function, Module, ModuleError, is_package, load, locate, members
from schemas.nearest import nearest
from schemas.renamed import now_called, renamed_function
from schemas.suggestions import LONGEST, suggest
from schemas.use import Use

MAX_HOPS = 8
REFERENCE = re.compile(r"lp_[a-z][a-z0-9_]*_T")
"""Log-probabilities under a named reference policy."""
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


def address(slot: type[Use], name: str) -> tuple[str, str]:
    """Module, and name inside it, that a word in a slot stands for. Raises SignatureError."""
    if ":" in name:
        module, _, function = name.partition(":")
        if not module or not function:
            raise SignatureError(f"`{name}` is no import path", "as package.module:function")
        return module, function
    if slot.home is None:
        raise SignatureError(f"`{name}` is no import path", "a function of your own is package.module:function")
    if slot.member:
        return f"{slot.home}.{name}", slot.member
    family, _, function = name.rpartition(".")
    return (f"{slot.home}.{family}" if family else slot.home), function


def signature(slot: type[Use], name: str, folders: tuple[Path, ...] = ()) -> Signature:
    """The signature of what `name` means in a slot. Raises SignatureError with the nearest name."""
    module, function = address(slot, name)
    house = ":" not in name
    try:
        found = _find(module, function, folders, 0, is_class=bool(slot.member))
        placed, named = _split(slot, found.supplied)
        if slot.takes is not None and (placed != slot.takes if house else len(placed) != len(slot.takes)):
            given = ", ".join(slot.takes) or "nothing"
            said = f"`{name}` takes ({', '.join(found.supplied)}) before the `*`, but is given {given}"
            raise SignatureError(said, _near(slot, name) if house else "what a recipe sets belongs after the `*`")
        if strange := [n for n in named if not supplies(slot, n) and (house or not may_be_named(slot, n))]:
            said = f"`{name}` asks for {', '.join(strange)}, which this slot does not supply"
            raise SignatureError(said, _near(slot, name) if house else suggest(strange[0], sorted(slot.asks), "names"))
        return _without(found, slot.withheld) if slot.withheld else found
    except (ModuleError, KeyError) as error:
        if house and (new := renamed_function(name, names(slot))) is not None:
            raise SignatureError(now_called(name, new), f"write `{new}` in its place") from None
        raise _unknown(slot, name, module, function, folders, error) from None


def _unknown(
    slot: type[Use], name: str, module: str, function: str, folders: tuple[Path, ...], error: ModuleError | KeyError
) -> SignatureError:
    """Return the error for a name that leads to no function, with the nearest name as advice."""
    house = ":" not in name
    if isinstance(error, ModuleError):
        advice = _near(slot, name) if house else f"the folders searched: {_searched(folders)}"
        said = f"no {_noun(slot)} `{name}`" if house and locate(module) is None else str(error)
        return SignatureError(said, advice)
    advice = _near(slot, name) if house else suggest(function, public_functions(module, folders), "functions there")
    said = f"no {_noun(slot)} `{name}`" if house else f"module `{module}` has no function `{function}`"
    return SignatureError(said, advice)


@lru_cache(maxsize=1024)
def _without(found: Signature, withheld: frozenset[str]) -> Signature:
    return replace(found, options={name: option for name, option in found.options.items() if name not in withheld})


def names(slot: type[Use]) -> list[str]:
    """Every name of our own that a slot knows, sorted."""
    if slot.home is None or locate(slot.home) is None:
        return []
    if slot.member:
        return [m for m in members(slot.home) if slot.member in load(f"{slot.home}.{m}").classes]
    inside = members(slot.home) if is_package(slot.home) else []
    known = public_functions(slot.home, ()) + [
        f"{m}.{f}" for m in inside for f in public_functions(f"{slot.home}.{m}", ())
    ]
    return sorted(n for n in known if _fits(slot, n))


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


def _fits(slot: type[Use], name: str) -> bool:
    """Whether a function is meant for the slot: helpers in the same module take something else."""
    try:
        found = _find(*address(slot, name), (), 0, is_class=False)
        placed, named = _split(slot, found.supplied)
        if not all(supplies(slot, n) for n in named):
            return False
        return bool(named) if slot.takes is None else placed == slot.takes and bool(slot.takes or found.options)
    except (SignatureError, ModuleError, KeyError):
        return False


def _split(slot: type[Use], supplied: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a function is given by place, and what it asks for by name."""
    count = len(slot.takes or ()) if slot.takes is None or slot.asks else len(supplied)
    return supplied[:count], supplied[count:]


def supplies(slot: type[Use], name: str) -> bool:
    """Whether the loop can give a slot's function what it asks for by a name."""
    named = "lp_ref_T" in slot.asks and REFERENCE.fullmatch(name) is not None
    return not slot.asks or name in slot.asks or named


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
    return f"{advice}; code of your own is package.module:function"


def _noun(slot: type[Use]) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", slot.__name__.removesuffix("Use")).lower()
    return words.rstrip("s")


def _searched(folders: tuple[Path, ...]) -> str:
    return ", ".join(dict.fromkeys(str(f) for f in folders)) or "Python's path"
