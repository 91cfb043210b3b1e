"""The merges that a mergekit document describes, tensor by tensor: which tensors of which models, by what parameters.

A parameter is a value; a list of numbers, the gradient over the layers of a slice (first to last, linear between); or a
list of {filter, value}, of which the first counts whose filter is part of the tensor's name (none or `*`: of all).
A model's value takes precedence over its slice's, and that over the document's.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from learning.models.weights import Weights
from schemas.errors import StepError

LAYER = re.compile(r"(?:^|(?<=\.))(layers|h|blocks)\.(\d+)(?=\.)")
BEFORE = re.compile(r"(^|\.)(embed\w*|wte|wpe)(\.|$)")
"""Tensors outside the layers that belong to the input; all others outside (last norm, head) belong to the output."""
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Source:
    """One model's part in a slice: `count` layers from `first` on."""

    label: str
    weights: Weights
    parameters: Mapping[str, Any]
    first: int
    count: int
    is_base: bool
    listed: bool = True
    """False for a base model that the document names as `base_model` only."""


@dataclass(frozen=True)
class Slice:
    """Equally long runs of layers, to be made into one run."""

    sources: list[Source]
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A tensor of the result: its name, its names in the sources, its slice, and its place there (0 first, 1 last)."""

    name: str
    source_names: list[str]
    slice: Slice
    position: float


def list_targets(slices: list[Slice], template: Weights) -> Iterator[Target]:
    """Yield every tensor of the result in the order of its name; those outside the layers are the template's."""
    targets = []
    for name in template.entries:
        if not LAYER.search(name):
            piece, position = (slices[0], 0.0) if BEFORE.search(name) else (slices[-1], 1.0)
            targets.append(Target(name, [name] * len(piece.sources), piece, position))
    offset = 0
    for piece in slices:
        for layer in range(piece.sources[0].count):
            targets += _layer(piece, layer, offset)
        offset += piece.sources[0].count
    yield from sorted(targets, key=lambda target: target.name)


def _layer(piece: Slice, layer: int, offset: int) -> Iterator[Target]:
    """Yield the tensors of one layer, as the slice's first source has them, renumbered."""
    lead, last = piece.sources[0], max(1, piece.sources[0].count - 1)
    for name in lead.weights.entries:
        match = LAYER.search(name)
        if match and int(match[2]) == lead.first + layer:
            theirs = [_renumbered(name, source.first + layer) for source in piece.sources]
            yield Target(_renumbered(name, offset + layer), theirs, piece, layer / last)


def _renumbered(name: str, layer: int) -> str:
    return LAYER.sub(lambda match: f"{match[1]}.{layer}", name, count=1)


def locate_tensor(source: Source, name: str) -> str:
    """Return a source's name of a tensor (a tied head is the embedding); raises StepError if it has none."""
    entries = source.weights.entries
    if name in entries:
        return name
    if name == HEAD and source.weights.tied:
        embedding = next((own for own in entries if own.endswith(("embed_tokens.weight", "wte.weight"))), None)
        if embedding:
            return embedding
    raise StepError(f"merge: {source.label} has no tensor {name}; all models must be of one architecture")


def refuse_unused_tensors(target_names: set[str], source: Source) -> None:
    """Raise StepError when a whole model has tensors of which the result knows nothing."""
    left = sorted(set(source.weights.entries) - target_names)
    if source.weights.tied:
        left = [name for name in left if name != HEAD]
    if left:
        raise StepError(
            f"merge: {source.label} has the tensor {left[0]}, which the first or base model lacks; all models must be "
            "of one architecture, and either all or none with a head tied to the embedding"
        )


def select_value(setting: Any, name: str, position: float) -> Any:
    """Return a parameter's value for one tensor; None when no filter fits."""
    if not isinstance(setting, list):
        return setting
    if all(isinstance(item, int | float) for item in setting):
        return _gradient(setting, position)
    for item in setting:
        if not isinstance(item, dict) or "value" not in item or set(item) - {"filter", "value"}:
            raise StepError(f"merge: {item!r} in a parameter; want numbers, or entries of {{filter, value}}")
        if item.get("filter") in (None, "*") or item["filter"] in name:
            return select_value(item["value"], name, position)
    return None


def _gradient(anchors: list[float], position: float) -> float:
    if not anchors:
        raise StepError("merge: an empty list as a parameter; want a number or a gradient over the layers")
    place = position * (len(anchors) - 1)
    left = min(int(place), max(0, len(anchors) - 2))
    right = min(left + 1, len(anchors) - 1)
    return anchors[left] + (anchors[right] - anchors[left]) * (place - left)


def select_parameter(name: str, target: Target, levels: list[Mapping[str, Any]]) -> Any:
    """Return the first level that has a value for the tensor; None when none has."""
    for level in levels:
        if name in level and (value := select_value(level[name], target.name, target.position)) is not None:
            return value
    return None
