"""One tensor of a merge: its parameters, its sources read and checked, the method applied."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from learning.lookup import find, options_of
from learning.merge.blocks import Blocks
from learning.merge.document import Source, Target, locate_tensor, select_parameter
from learning.models.weights import StoredTensor
from schemas.errors import StepError
from schemas.use import MergeMethodUse

WITHOUT_EFFECT = {"int8_mask"}
"""mergekit's parameters that change how it computes and not what: masks take one byte per entry here anyhow."""

Options = dict[str, Any]
"""Arguments of a method by name."""


@dataclass
class Method:
    """A merge method with what its signature says: what it is supplied with, and which options are per model."""

    name: str
    function: Callable[..., Tensor] = field(init=False)
    supplied: set[str] = field(init=False)
    options: dict[str, bool] = field(init=False)
    """Option to whether it holds one value per model."""
    required: set[str] = field(init=False)
    by_blocks: bool = field(init=False)
    """Whether it reads tensors block by block, so that they need not be in memory."""

    def __post_init__(self) -> None:
        """Find the function; raises StepError when there is none."""
        self.function = find(MergeMethodUse(use=self.name))
        parameters = inspect.signature(self.function).parameters.values()
        hints = get_type_hints(self.function)
        keyword = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        self.supplied = {p.name for p in parameters if p not in keyword}
        self.by_blocks = hints.get("tensors") == list[Blocks]
        self.options = {p.name: list in (hints[p.name], *get_args(hints[p.name])) for p in keyword}
        self.required = {p.name for p in keyword if p.default is inspect.Parameter.empty}
        self._checked: dict[str, Options] = {}

    @property
    def takes_base(self) -> bool:
        """Whether it works on differences to a base model."""
        return "base" in self.supplied

    def refuse_unknown(self, levels: list[Mapping[str, Any]]) -> None:
        """Raise StepError for a parameter that the method does not have."""
        names = {_spelt(option) for option in self.options}
        for name in sorted({name for level in levels for name in level} - names - WITHOUT_EFFECT):
            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(names))}"
            raise StepError(f"merge_method {self.name}: no parameter {name!r}; {hint}")

    def bind(self, target: Target, models: list[Source], document: Mapping[str, Any]) -> Options:
        """Return the options for one tensor, checked against the signature; raises StepError when one is missing."""
        arguments = {}
        for option, per_model in self.options.items():
            name, shared = _spelt(option), [target.slice.parameters, document]
            if per_model:
                values = [select_parameter(name, target, [source.parameters, *shared]) for source in models]
            else:
                sources = [source.parameters for source in target.slice.sources]
                values = [select_parameter(name, target, [*sources, *shared])]
            if all(value is None for value in values) and option not in self.required:
                continue
            for source, value in zip(models, values, strict=False):
                if value is None and option in self.required:
                    whose = f"{source.label} has" if per_model else "there is"
                    raise StepError(f"merge_method {self.name}: {whose} no {name} for tensor {target.name}; set one")
            arguments[option] = values if per_model else values[0]
        if repr(arguments) not in self._checked:
            self._checked[repr(arguments)] = options_of(self.function, arguments, self.name)
        return self._checked[repr(arguments)]


def _spelt(option: str) -> str:
    """Return the word in the document: `lambda_` is `lambda`, which Python keeps for itself."""
    return option.removesuffix("_")


def select_participants(target: Target, method: Method) -> tuple[list[Source], Source | None]:
    """Return the models that are merged, and the base where the method takes one."""
    if not method.takes_base:
        return [s for s in target.slice.sources if s.listed], None
    base = next((source for source in target.slice.sources if source.is_base), None)
    if base is None:
        raise StepError(f"merge_method {method.name}: base_model is missing, or not among the sources of a slice")
    others = [source for source in target.slice.sources if not source.is_base]
    if not others:
        raise StepError(f"merge_method {method.name}: no model besides base_model; list the models to merge")
    return others, base


def check_shapes(target: Target) -> tuple[int, ...]:
    """Return the tensor's shape; raises StepError when models differ in it."""
    first, *others = zip(target.slice.sources, target.source_names, strict=True)
    shape = first[0].weights.entries[locate_tensor(*first)].shape
    for source, name in others:
        theirs = source.weights.entries[locate_tensor(source, name)].shape
        if theirs != shape:
            raise StepError(
                f"merge: tensor {target.name} is {list(shape)} in {first[0].label} and "
                f"{list(theirs)} in {source.label}; "
                "only models of one shape can be merged"
            )
    return shape


def open_tensors(target: Target) -> list[StoredTensor]:
    """Return the tensor of every source without reading it, in the order of the slice."""
    pairs = zip(target.slice.sources, target.source_names, strict=True)
    return [source.weights.open(locate_tensor(source, name)) for source, name in pairs]


def collect_arguments(target: Target, method: Method, dtype: torch.dtype) -> tuple[list[Source], Options]:
    """Return the models that are merged and what their method is given of them, read where it needs them in memory."""
    models, base = select_participants(target, method)
    stored = {id(s): t.to(dtype) for s, t in zip(target.slice.sources, open_tensors(target), strict=True)}
    by_source = stored if method.by_blocks else {id_: t.read().view(t.shape) for id_, t in stored.items()}
    arguments: Options = {"tensors": [by_source[id(source)] for source in models]}
    if base is not None:
        arguments["base"] = by_source[id(base)]
    return models, arguments


def sum_totals(
    targets: Iterable[Target], method: Method, document: Mapping[str, Any], dtype: torch.dtype
) -> list[float]:
    """Return the sum of the method's `<method>_totals` over all tensors; raises StepError without that function."""
    if "totals" not in method.supplied:
        return []
    name = f"{method.function.__name__}_totals"
    count = getattr(sys.modules[method.function.__module__], name, None)
    if count is None:
        raise StepError(f"merge_method {method.name}: takes totals, but its module has no function {name}")
    options = {p.name for p in inspect.signature(count).parameters.values() if p.kind is p.KEYWORD_ONLY}
    totals: list[float] = []
    for target in targets:
        if open_tensors(target)[0].is_floating_point():
            models, arguments = collect_arguments(target, method, dtype)
            bound = method.bind(target, models, document)
            counts = count(arguments["base"], arguments["tensors"], **{k: v for k, v in bound.items() if k in options})
            totals = [a + b for a, b in zip(totals or [0.0] * len(counts), counts, strict=True)]
    return totals


def merge_tensor(
    target: Target,
    method: Method,
    document: Mapping[str, Any],
    *,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    seed: int,
    totals: list[float],
) -> Tensor:
    """Apply the method to the tensors of all sources; integers are not merged but must be equal."""
    first, *others = open_tensors(target)
    if not first.is_floating_point():
        integers = first.read().view(first.shape)
        if any(not torch.equal(tensor.read().view(tensor.shape), integers) for tensor in others):
            raise StepError(f"merge: tensor {target.name} has integers that differ between the models")
        return integers
    models, arguments = collect_arguments(target, method, dtype)
    own_seed = int.from_bytes(hashlib.sha256(f"{seed}:{target.name}".encode()).digest()[:8], "little") >> 1
    shape = arguments["tensors"][0].shape
    arguments |= {k: v for k, v in {"seed": own_seed, "totals": totals}.items() if k in method.supplied}
    result = method.function(**arguments, **method.bind(target, models, document))
    if tuple(result.shape) != tuple(shape):
        raise StepError(f"merge_method {method.name}: made {list(result.shape)} for tensor {target.name}")
    return result.to(out_dtype)
