"""Which modules of a model get adapters, and which are trained whole, by the names that a recipe gives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from schemas.base import JsonObject
from schemas.training import ALL_LINEAR, LoRA

LINEAR = (nn.Linear, Conv1D)
ADAPTABLE = (*LINEAR, nn.Embedding)
EVERY = ("alllinear", "all", "linear")
"""Letters of words that are written for `all-linear`."""
BLOCK = 64
"""Weights in 4 bits that share a scale."""


@dataclass(frozen=True)
class Targets:
    """Names of modules with adapters and of modules that are trained whole."""

    adapted: frozenset[str]
    saved: frozenset[str]
    tied: bool = False
    """Whether a saved module shares its weights with another one."""


class TargetError(Exception):
    """No module fits what `option` names."""

    def __init__(self, option: str, message: str):
        self.option = option
        super().__init__(message)


def find_targets(model: Any, options: LoRA) -> Targets:
    """Return the modules that the options name. Raise TargetError if they name none, or one that cannot be adapted."""
    modules = dict(model.named_modules(remove_duplicate=False))
    saved = {module for name in options.modules_to_save for module in _find_saved(modules, name)}
    ends = _list_ends(model)
    shared = [name for name, module in modules.items() if module in ends] if is_tied(model) else []
    tied = bool(saved & {*shared})
    if tied:
        saved |= {*shared}
    head = getattr(model, "score", None)
    if isinstance(head, nn.Linear):
        saved.add("score")
    if options.lora_target_modules == ALL_LINEAR:
        adapted = _find_all_linear(modules, list_language_modules(model) - ends - {head}) - saved
    else:
        adapted = _find_named(modules, options.lora_target_modules, saved)
    if both := sorted(adapted & {*shared}):
        raise TargetError(
            "lora_target_modules",
            f"`{both[0]}` shares its weights with {_name_other(shared, both[0])}, and an adapter would change only one "
            "of them; name it in `modules_to_save` instead",
        )
    return Targets(frozenset(adapted), frozenset(saved), tied)


def check_targets(config: JsonObject, options: LoRA, *, classifier: bool) -> None:
    """Raise TargetError if a model of a configuration lacks modules that the options name; it has no weights yet.

    A configuration that transformers refuses is not judged here.
    """
    rest: dict[str, Any] = {name: value for name, value in config.items() if name != "model_type"}
    rest |= {"num_labels": 1} if classifier else {}
    make = AutoModelForSequenceClassification if classifier else AutoModelForCausalLM
    try:
        made = CONFIG_MAPPING[str(config.get("model_type"))](**rest)
        with torch.device("meta"):
            model = make.from_config(made)
    except (StrictDataclassError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        return
    find_targets(model, options)


def list_language_modules(model: Any) -> set[nn.Module]:
    """Return the modules of the language part of a model: all but vision and audio towers and their projectors."""
    decoder, embedding = model.get_decoder(), model.get_input_embeddings()
    if decoder is None or embedding not in set(decoder.modules()):
        decoder = model
    towers: set[nn.Module] = set()
    for branch in decoder.children():
        inner = set(branch.modules())
        if embedding not in inner and any(isinstance(module, PreTrainedModel) for module in inner):
            towers |= inner
    return {*decoder.modules()} - towers


def list_quantised(model: Any, saved: Sequence[str]) -> list[str]:
    """Return the names of the layers that get weights in 4 bits: linear ones of the language part, without the head.

    Modules that are trained whole (`saved`, by names or ends of dotted names), layers with two names, and those whose
    inputs are not a multiple of a block get none: bitsandbytes 0.50.2 reads the scales of their blocks wrongly on CPUs.
    """
    language, names = list_language_modules(model), {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is nn.Linear and module in language and not module.in_features % BLOCK:
            names.setdefault(module, []).append(name)
    for kept in (model.get_output_embeddings(), getattr(model, "score", None)):
        names.pop(kept, None)
    single = [shared[0] for shared in names.values() if len(shared) == 1]
    return [name for name in single if not any(_matches(end, name, regex=False) for end in saved)]


def _find_all_linear(modules: dict[str, nn.Module], candidates: set[nn.Module]) -> set[str]:
    """Return the names of the linear modules among the candidates. Raise TargetError if there are none."""
    matches = {name for name, module in modules.items() if isinstance(module, LINEAR) and module in candidates}
    if not matches:
        raise TargetError("lora_target_modules", f"no linear module is left; {_describe_linear(modules)}")
    return matches


def _find_named(modules: dict[str, nn.Module], wanted: list[str] | str, saved: set[str]) -> set[str]:
    """Return the names of the modules that a list or an expression names, of every part of the model."""
    option = "lora_target_modules"
    names = [wanted] if isinstance(wanted, str) else wanted
    matches = set()
    for name in names:
        here = {other for other in modules if _matches(name, other, regex=isinstance(wanted, str))}
        if not here:
            what = "the regular expression matches no module" if isinstance(wanted, str) else f"no module `{name}`"
            every = f"; write `{ALL_LINEAR}` for all of them" if re.sub("[^a-z]", "", name.lower()) in EVERY else ""
            raise TargetError(option, f"{what} of this model; {_describe_linear(modules)}{every}")
        if wrong := sorted(other for other in here if not isinstance(modules[other], ADAPTABLE)):
            kind = type(modules[wrong[0]]).__name__
            raise TargetError(option, f"`{wrong[0]}` is no linear module but {kind}; {_describe_linear(modules)}")
        matches |= here
    if both := sorted(matches & saved):
        raise TargetError(option, f"`{both[0]}` is trained whole by `modules_to_save`; leave it out here or there")
    return matches


def _matches(wanted: str, name: str, *, regex: bool) -> bool:
    """Return whether a module is meant, by peft's rule: a whole match of an expression, or the end of a dotted name."""
    return bool(re.fullmatch(wanted, name)) if regex else name == wanted or name.endswith(f".{wanted}")


def _find_saved(modules: dict[str, nn.Module], wanted: str) -> set[str]:
    """Return the modules of a name that is to be trained whole."""
    matches = {name for name in modules if _matches(wanted, name, regex=False)}
    if not matches:
        leaves = {n.rpartition(".")[2] for n, module in modules.items() if n and _is_leaf(module)}
        raise TargetError(
            "modules_to_save", f"no module `{wanted}` in this model; modules with weights: {', '.join(sorted(leaves))}"
        )
    for name in sorted(matches):
        if parts := [part for part, _ in modules[name].named_children()]:
            raise TargetError("modules_to_save", f"`{name}` consists of other modules; name them: {', '.join(parts)}")
        if not _is_leaf(modules[name]):
            raise TargetError("modules_to_save", f"`{name}` has no weights")
    return matches


def _is_leaf(module: nn.Module) -> bool:
    return not any(module.children()) and any(True for _ in module.parameters())


def _list_ends(model: Any) -> set[Any]:
    """Return the embedding and the head of a language model."""
    return {end for end in (model.get_input_embeddings(), model.get_output_embeddings()) if end is not None}


def is_tied(model: Any) -> bool:
    """Return whether a model's head and embedding are one matrix."""
    above, below = model.get_input_embeddings(), model.get_output_embeddings()
    return above is not None and below is not None and above.weight is below.weight


def _name_other(shared: list[str], name: str) -> str:
    return " and ".join(f"`{other}`" for other in shared if other != name)


def _describe_linear(modules: dict[str, nn.Module]) -> str:
    """Return the linear modules of a model in words, by the ends of their names."""
    names = sorted(name for name, module in modules.items() if isinstance(module, LINEAR))
    if not names:
        return "it has no linear modules"
    ends = sorted({name.rpartition(".")[2] for name in names})
    return f"its linear modules are {', '.join(ends)} (in full, for example {names[0]})"
