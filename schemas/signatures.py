"""Signatures of the functions that recipes name, read from source text, so that validation does not import torch.

The loop supplies the parameters before the `*`; those after it are the recipe's options. `learning.lookup` imports and
binds the same functions.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional

from pydantic import BaseModel, ConfigDict, create_model

from schemas.addresses import AddressError, find_address, fits, split_supplied, supplies
from schemas.annotations import Unknown, read_literal, read_type
from schemas.base import JsonObject
from schemas.errors import printable
from schemas.modules import Function, Module, ModuleError, list_modules, load
from schemas.renamed import describe_renaming, find_renamed_function
from schemas.suggestions import LONGEST, find_nearest, suggest
from schemas.use import ForeignUse, Use

MAX_HOPS = 8
TYPOGRAPHIC = "“”„‟‘’‚"
"""Quotes that YAML reads as a part of the text."""
OWN = "code of your own is package.module:function"
COLUMN = re.compile(r"[a-z][a-z0-9_]*_[TP]")
"""Name of a column, possibly of an auxiliary model, whose names only the stage defines."""


class SignatureError(Exception):
    """The name does not refer to a usable function; `advice` says what to do."""

    def __init__(self, message: str, advice: str = ""):
        self.advice = advice
        super().__init__(message)


@dataclass(frozen=True)
class Option:
    """An option that a recipe may set; if its default is not a literal, the function applies it itself."""

    type: Any
    required: bool
    default: Any = None
    is_literal: bool = True


@dataclass(frozen=True, eq=False)
class Signature:
    """A function that a recipe can name; read once per text of its module, so that equal signatures are identical."""

    module: str
    name: str
    doc: str
    supplied: tuple[str, ...]
    options: dict[str, Option]
    optional: tuple[str, ...] = ()
    """Parameters before the `*` with a default: the loop supplies them where it has them."""

    @property
    def summary(self) -> str:
        """First line of the documentation."""
        return self.doc.partition("\n")[0].strip()


def read_signature(slot: type[Use], name: str, folders: tuple[Path, ...] = ()) -> Signature:
    """Return the signature of the function that a slot names. Raise SignatureError with the nearest name."""
    try:
        module, function = find_address(slot, name)
    except AddressError as error:
        if slot.home and (new := find_renamed_function(name, list_names(slot))) is not None:
            raise SignatureError(describe_renaming(name, new), f"write `{new}` instead") from None
        own = _suggest_own(name, folders)
        raise SignatureError(str(error), own or (_suggest_names(slot, name) if slot.home else OWN)) from None
    is_own = ":" not in name
    try:
        if issubclass(slot, ForeignUse):
            return _find_foreign(module, function, folders, 0)
        signature = _find_signature(module, function, folders, 0, is_class=bool(slot.member))
        placed, named = split_supplied(slot, (*signature.supplied, *signature.optional))
        if slot.takes is not None and (placed != slot.takes if is_own else len(placed) != len(slot.takes)):
            expected = f"this slot passes ({', '.join(slot.takes)})"
            parameters = ", ".join((*signature.supplied, *signature.optional))
            message = f"`{name}` has the parameters ({parameters}) before the `*`, but {expected}"
            advice = _suggest_names(slot, name) if is_own else "put the recipe's options after the `*`"
            raise SignatureError(message, advice)
        if strange := [n for n in named if not supplies(slot, n) and (is_own or not may_be_auxiliary(slot, n))]:
            message = f"`{name}` takes {', '.join(strange)}, which this slot does not supply"
            advice = _suggest_names(slot, name) if is_own else suggest(strange[0], sorted(slot.asks), "names")
            if "prompts" in strange and "completions" in slot.asks:
                advice = f"a reward of TRL is written {{use: foreign.trl, function: '{name}'}}"
            elif strange[0] in signature.optional and not is_own:
                advice = f"what a recipe may set comes after a `*`: def {function}(completions, *, {strange[0]}=...)"
                advice = advice if "completions" in slot.asks else f"put `{strange[0]}` after a `*` in its `def`"
            elif "completion" in strange and "completions" in slot.asks:
                advice = "did you mean `completions`? A reward gets lists, and returns one score for each completion"
            raise SignatureError(message, advice)
        return _without(signature, slot.withheld) if slot.withheld else signature
    except ModuleError as error:
        own = _suggest_own(name, folders) or f"searched folders: {_list_folders(folders)}"
        if module[:1] in TYPOGRAPHIC:
            own = f"its quotes are typographic: write `{name.strip(TYPOGRAPHIC)}` in plain ones; {own}"
        if "-" in module:
            own = f"a module's name has no `-`: call the file {module.replace('-', '_')}.py, and write that; {own}"
        advice = _suggest_names(slot, name) if is_own else own
        raise SignatureError(str(error), advice) from None
    except KeyError:
        functions = list_public_functions(module, folders)
        advice = suggest(function, functions, "its functions") if functions else f"write `def {function}(...)` there"
        raise SignatureError(f"module `{module}` has no function `{function}`", advice) from None


@lru_cache(maxsize=8192)
def _without(signature: Signature, withheld: frozenset[str]) -> Signature:
    options = {name: option for name, option in signature.options.items() if name not in withheld}
    return replace(signature, options=options)


def list_names(slot: type[Use]) -> list[str]:
    """Return the names of posttrain's functions in a slot, sorted."""
    return sorted({name for name, _ in list_definitions(slot)})


def list_definitions(slot: type[Use]) -> Iterator[tuple[str, str]]:
    """Yield the name of every function of posttrain in a slot, with the module that defines it."""
    for module in dict.fromkeys(module for home in slot.home for module in list_modules(home)):
        family = module.rpartition(".")[2]
        definitions = load(module)
        if slot.member in definitions.classes:
            yield family, module
        for name, function in definitions.functions.items() if not slot.member else ():
            if not name.startswith("_") and fits(slot, function):
                yield f"{family}.{name}" if slot.qualified else name, module


def read_signatures(slot: type[Use]) -> Iterator[tuple[str, Signature]]:
    """Yield the name and the signature of every function of posttrain in a slot."""
    for name in list_names(slot):
        yield name, read_signature(slot, name)


@lru_cache(maxsize=8192)
def make_options_model(signature: Signature) -> type[BaseModel]:
    """Return the options as a pydantic model that refuses unknown keys."""
    fields: JsonObject = {}
    for name, option in signature.options.items():
        nullable = not option.required and option.default is None
        kind = Optional[option.type] if nullable else option.type  # noqa: UP045 — computed
        fields[name] = (kind, ... if option.required else option.default)
    config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False, validate_default=True)
    return create_model(f"{signature.module}.{signature.name}", __config__=config, **fields)


def _find_signature(name: str, function: str, folders: tuple[Path, ...], hops: int, is_class: bool) -> Signature:
    module = load(name, folders)
    if is_class or function in module.classes:
        return _read_constructor(module, function)
    if function in module.functions and not function.startswith("_"):
        return _read_function(module, module.functions[function], skip=0)
    if function in module.imports and hops < MAX_HOPS:
        source, original = module.imports[function]
        return _find_signature(source, original, (module.file.parent, *folders), hops + 1, is_class)
    raise KeyError(function)


def _find_foreign(name: str, function: str, folders: tuple[Path, ...], hops: int) -> Signature:
    """Return a function whose parameters are not posttrain's: there are no options. Raise KeyError if there is none."""
    module = load(name, folders)
    if function in module.functions:
        return Signature(module.name, function, ast.get_docstring(module.functions[function]) or "", (), {})
    if function in module.imports and hops < MAX_HOPS:
        source, original = module.imports[function]
        return _find_foreign(source, original, (module.file.parent, *folders), hops + 1)
    raise KeyError(function)


@lru_cache(maxsize=8192)
def _read_constructor(module: Module, name: str) -> Signature:
    kind = module.classes[name]
    constructor = next((n for n in kind.body if isinstance(n, Function) and n.name == "__init__"), None)
    if constructor is None:
        return Signature(module.name, name, ast.get_docstring(kind) or "", (), {})
    signature = _read_function(module, constructor, skip=1)
    return replace(signature, name=name, doc=ast.get_docstring(kind) or signature.doc)


@lru_cache(maxsize=8192)
def _read_function(module: Module, function: Function, skip: int) -> Signature:
    spec = function.args
    if spec.kwarg is not None:
        advice = "give every option a name, annotation and default after the `*`"
        if "completions" in (argument.arg for argument in spec.args):
            trl = f"{{use: foreign.trl, function: '{module.name}:{function.name}'}}"
            advice = f"a reward of TRL is written {trl}; otherwise {advice}"
        raise SignatureError(f"the options of `{function.name}` cannot be checked: `**{spec.kwarg.arg}`", advice)
    options = {a.arg: _read_option(a, d, module) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)}
    before_star = [a.arg for a in [*spec.posonlyargs, *spec.args]]
    required = len(before_star) - len(spec.defaults)
    supplied, optional = tuple(before_star[skip:required]), tuple(before_star[max(skip, required) :])
    return Signature(module.name, function.name, ast.get_docstring(function) or "", supplied, options, optional)


def _read_option(argument: ast.arg, default: ast.expr | None, module: Module) -> Option:
    kind = read_type(argument.annotation, module)
    if default is None:
        return Option(kind, required=True)
    try:
        return Option(kind, required=False, default=read_literal(default, module))
    except (Unknown, ModuleError):
        return Option(kind, required=False, is_literal=False)


def list_public_functions(name: str, folders: tuple[Path, ...]) -> list[str]:
    """Return the functions of a module that a recipe can name: its own, and those imported from its package."""
    try:
        module = load(name, folders)
    except ModuleError:
        return []
    package = name.partition(".")[0]
    imported = [n for n, (source, _) in module.imports.items() if source.startswith(f"{package}.") and n.islower()]
    own = [n for n in module.functions if not n.startswith("_")]
    return own + [n for n in imported if not n.startswith("_") and _is_function(module, n)]


def _is_function(module: Module, name: str) -> bool:
    source, original = module.imports[name]
    try:
        return original in load(source).functions
    except ModuleError:
        return False


def may_be_auxiliary(slot: type[Use], name: str) -> bool:
    """Return whether a parameter of a slot's function may be a column of an auxiliary model."""
    return "auxiliary_T" in slot.asks and COLUMN.fullmatch(name) is not None


def _suggest_names(slot: type[Use], name: str) -> str:
    names, near = list_names(slot), None
    if len(name) <= LONGEST:
        last_parts = [n.rpartition(".")[2] for n in names]
        near = find_nearest(name, names) or find_nearest(name.rpartition(".")[2], last_parts)
    advice = suggest(name, names, "names here")
    if near and "did you mean" not in advice:
        full = next(n for n in names if n == near or n.endswith(f".{near}"))
        advice = f"did you mean `{full}`? {advice}"
    if near is None and slot.foreign:
        return f"{slot.foreign.format(name=printable(name, LONGEST))}; {advice}; {OWN}"
    return f"{advice}; {OWN}"


def _suggest_own(name: str, folders: tuple[Path, ...]) -> str:
    """Return how to name a function of the user's own that is written as a file or with a dot; else nothing."""
    written, colon, function = name.partition(":")
    if colon:
        module = written.removeprefix("./").removesuffix(".py").replace("/", ".").strip(".")
        return f"write `{module}:{function}`: a module is named without path and suffix" if module != written else ""
    module, _, function = name.rpartition(".")
    parts = module.split(".")
    if len(name) > LONGEST or not all(part.isidentifier() for part in parts):
        return ""
    file = Path(*parts).with_suffix(".py")
    if not any((folder / file).is_file() for folder in folders):
        return ""
    return f"write `{module}:{function}` for a function of {file}"


def _list_folders(folders: tuple[Path, ...]) -> str:
    return ", ".join(dict.fromkeys(str(f) for f in folders)) or "Python's path"
