"""The definition of the function that a slot names, searched in the text of the modules of the slot's home.

A name refers to a function at the top level of a module of the home (`module.function` in qualified slots) whose
parameters before the `*` are those that the slot supplies; helper functions have other parameters. `learning.lookup`
imports the module, and `schemas.signatures` reads the options.
"""

import re

from schemas.modules import Function, find_defining_modules, load
from schemas.use import Use

REFERENCE = re.compile(r"lp_[a-z][a-z0-9_]*_T")
"""Log-probabilities under a named reference policy."""
MODEL_READERS = {
    "gguf": ("learning.models.gguf", "GgufFile"),
    "adapter": ("learning.models.adapted_policy", "AdapterFolder"),
    "multimodal": ("learning.models.towers", "keep_towers"),
    "quantised": ("learning.models.quantised", "round_weights"),
}
"""Rare forms of models: module and name of what treats them. A step's key covers it if an input may have that form."""


class AddressError(Exception):
    """No function of the slot's home, or more than one, has the name."""


def find_address(slot: type[Use], name: str) -> tuple[str, str]:
    """Return the module and the name inside it of the function that a slot names. Raise AddressError."""
    if ":" in name:
        module, _, function = name.partition(":")
        if not module or not function:
            raise AddressError(f"`{name}` is not an import path")
        if module.startswith("posttrain."):
            short = name.removeprefix("posttrain.")
            raise AddressError(f"`{name}`: recipes name modules of posttrain without `posttrain.`: write `{short}`")
        return module, function
    if not slot.home:
        raise AddressError(f"`{name}` is not an import path")
    places = _find_candidates(slot, name)
    if len(places) > 1:
        fitting = [place for place in places if _is_fitting(slot, *place)]
        if len(fitting) > 1:
            modules = " and ".join(module for module, _ in fitting)
            raise AddressError(f"`{name}` is defined in {modules}; rename one of them")
        places = fitting or places
    if not places:
        raise AddressError(f"no {describe_slot(slot)} `{name}`")
    return places[0]


def describe_slot(slot: type[Use]) -> str:
    """Return the name of a slot's functions in messages: `token mask`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", slot.__name__.removesuffix("Use")).lower()
    return words if words.endswith("ss") else words.removesuffix("s")


def fits(slot: type[Use], function: Function) -> bool:
    """Return whether the slot supplies exactly the parameters of a function before its `*`."""
    spec = function.args
    if spec.kwarg is not None:
        return False
    placed, named = split_supplied(slot, tuple(a.arg for a in [*spec.posonlyargs, *spec.args]))
    if not all(supplies(slot, parameter) for parameter in named):
        return False
    return bool(named) if slot.takes is None else placed == slot.takes and bool(slot.takes or spec.kwonlyargs)


def split_supplied(slot: type[Use], supplied: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parameters that a slot passes by position, and those that it passes by name."""
    count = len(slot.takes or ()) if slot.takes is None or slot.asks else len(supplied)
    return supplied[:count], supplied[count:]


def supplies(slot: type[Use], name: str) -> bool:
    """Return whether the loop can supply a parameter of that name to a slot's function."""
    is_reference = "lp_ref_T" in slot.asks and REFERENCE.fullmatch(name) is not None
    return not slot.asks or name in slot.asks or is_reference


def _find_candidates(slot: type[Use], name: str) -> list[tuple[str, str]]:
    """Return module and name of every definition in a slot's home that a name could refer to."""
    family, _, function = name.rpartition(".")
    if slot.member:
        family, function = name, slot.member
    elif function.startswith("_") or bool(family) != slot.qualified:
        return []
    modules = dict.fromkeys(module for home in slot.home for module in find_defining_modules(home, function))
    return [(module, function) for module in modules if not family or module.rpartition(".")[2] == family]


def _is_fitting(slot: type[Use], module: str, name: str) -> bool:
    read = load(module)
    return name in read.classes if slot.member else name in read.functions and fits(slot, read.functions[name])
