"""Where the function that a slot names is defined, found in the text of the modules of the slot's home.

A name is that of a function at the top level of a module of the home (`module.function` in qualified slots) whose
parameters before the `*` the slot supplies: helpers beside it take something else. `learning.lookup` imports the module
that is found here, and `schemas.signatures` reads its options.
"""

import re

from schemas.modules import Function, defining, load
from schemas.use import Use

REFERENCE = re.compile(r"lp_[a-z][a-z0-9_]*_T")
"""Log-probabilities under a named reference policy."""


class AddressError(Exception):
    """A name that no function, or more than one, of the slot's home has."""


def address(slot: type[Use], name: str) -> tuple[str, str]:
    """Return module, and name inside it, of what a word in a slot stands for. Raise AddressError."""
    if ":" in name:
        module, _, function = name.partition(":")
        if not module or not function:
            raise AddressError(f"`{name}` is no import path")
        if module.startswith("posttrain."):
            ours = name.removeprefix("posttrain.")
            raise AddressError(f"`{name}`: recipes name modules of ours without `posttrain.`: write `{ours}`")
        return module, function
    if not slot.home:
        raise AddressError(f"`{name}` is no import path")
    places = _defined(slot, name)
    if len(places) > 1:
        fitting = [place for place in places if _fits_at(slot, *place)]
        if len(fitting) > 1:
            modules = " and ".join(module for module, _ in fitting)
            raise AddressError(f"`{name}` is defined in {modules}: rename one, a name stands for one function")
        places = fitting or places
    if not places:
        raise AddressError(f"no {noun(slot)} `{name}`")
    return places[0]


def noun(slot: type[Use]) -> str:
    """Return what messages call the functions of a slot."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", slot.__name__.removesuffix("Use")).lower()
    return words.rstrip("s")


def fits(slot: type[Use], function: Function) -> bool:
    """Return whether a function is meant for the slot: its parameters before the `*` are what the slot supplies."""
    spec = function.args
    if spec.kwarg is not None:
        return False
    placed, named = split_supplied(slot, tuple(a.arg for a in [*spec.posonlyargs, *spec.args]))
    if not all(supplies(slot, parameter) for parameter in named):
        return False
    return bool(named) if slot.takes is None else placed == slot.takes and bool(slot.takes or spec.kwonlyargs)


def split_supplied(slot: type[Use], supplied: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what a function is given by place, and what it asks for by name."""
    count = len(slot.takes or ()) if slot.takes is None or slot.asks else len(supplied)
    return supplied[:count], supplied[count:]


def supplies(slot: type[Use], name: str) -> bool:
    """Return whether the loop can give a slot's function what it asks for by a name."""
    named = "lp_ref_T" in slot.asks and REFERENCE.fullmatch(name) is not None
    return not slot.asks or name in slot.asks or named


def _defined(slot: type[Use], name: str) -> list[tuple[str, str]]:
    """Return module and name of everything in the home of a slot that a word could stand for."""
    family, _, function = name.rpartition(".")
    if slot.member:
        family, function = name, slot.member
    elif function.startswith("_") or bool(family) != slot.qualified:
        return []
    modules = dict.fromkeys(module for home in slot.home for module in defining(home, function))
    return [(module, function) for module in modules if not family or module.rpartition(".")[2] == family]


def _fits_at(slot: type[Use], module: str, name: str) -> bool:
    read = load(module)
    return name in read.classes if slot.member else name in read.functions and fits(slot, read.functions[name])
