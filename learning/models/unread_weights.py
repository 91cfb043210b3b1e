"""Weights that stay in their files until a model is sharded, so that no rank ever holds the whole model.

A model is made without values, on the device `meta`, and its parameters are sharded; then every rank reads the rows of
its own shards from the safetensors files, tensor by tensor. Names and conversions are those of transformers'
`from_pretrained`. A tensor whose rows are not consecutive in the files (one that is transposed or fused) is converted
whole, and all but this rank's rows are dropped before the next one is read.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from learning.models.weights import StoredTensor, Weights

CHUNK = 2**22
"""Elements of two tensors that are compared at once."""


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in a module: it stays valid when the module is wrapped or its parameter is sharded."""

    module: nn.Module
    name: str

    @property
    def tensor(self) -> Any:
        """The tensor that is there now."""
        return getattr(self.module, self.name)


@dataclass
class Conversion:
    """A conversion of transformers, and the stored tensors that it needs, by its source pattern."""

    rule: WeightConverter
    sources: dict[str, list[StoredTensor]] = field(default_factory=dict)

    @property
    def keeps_first_dimension(self) -> bool:
        """Whether the entries of the result's first dimension are separate stored tensors, as experts are."""
        first, *others = self.rule.operations
        stacks = isinstance(first, MergeModulelist) and first.dim == 0
        return stacks and all(isinstance(other, Concatenate) and other.dim > 0 for other in others)


@dataclass
class UnreadWeights:
    """The stored tensors of a model without values, by their first name in the model."""

    folder: Path
    model: Any
    """The model as transformers made it; names are those of its `state_dict()`."""
    slots: dict[str, Slot]
    shapes: "Shapes"
    plain: dict[str, StoredTensor] = field(default_factory=dict)
    converted: dict[str, Conversion] = field(default_factory=dict)

    @contextmanager
    def stand_ins(self) -> Iterator[None]:
        """Put tensors on the CPU in the places of those without values: of the same shape, but one stored number, NaN.

        Code that adds to the model then finds the device that it expects; what it computes from weights is NaN.
        """
        originals = [(slot, slot.tensor) for slot in self.slots.values() if slot.tensor.is_meta]
        made: dict[int, nn.Parameter] = {}
        for slot, tensor in originals:
            if isinstance(tensor, nn.Parameter):
                number = torch.full((), torch.nan, dtype=tensor.dtype)
                made.setdefault(id(tensor), nn.Parameter(number.expand(tensor.shape), tensor.requires_grad))
                setattr(slot.module, slot.name, made[id(tensor)])
        try:
            yield
        finally:
            for slot, tensor in originals:
                if id(tensor) in made:
                    setattr(slot.module, slot.name, tensor.requires_grad_(made[id(tensor)].requires_grad))

    def read(self, model: nn.Module, device: str) -> None:
        """Allocate the tensors of `model` that have no values, on a device, and read them; shards get their own rows.

        `model` is the one without values, or what wraps it.
        """
        # `Module.to_empty` would empty the tensors that have values, too.
        model._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)
        with torch.no_grad():
            for name in sorted((*self.plain, *self.converted), key=dot_natural_key):
                if name in self.plain:
                    copy_rows(self.slots[name].tensor, self.plain[name])
                else:
                    self._convert(name, self.converted[name])

    def _convert(self, name: str, conversion: Conversion) -> None:
        """Read, convert and copy the tensors of one conversion; of experts only those of this rank."""
        rule, first = deepcopy(conversion.rule), self.slots[name].tensor
        mine = find_rows(first) if conversion.keeps_first_dimension else slice(None)
        for pattern, sources in conversion.sources.items():
            for source in sources[mine]:
                read: Any = partial(StoredTensor.read_whole, source.to(first.dtype))
                rule.add_tensor(name, source.name, pattern, read)
        if not rule.collected_tensors:
            return
        converted = rule.convert(name, model=self.shapes, config=self.shapes.config)
        while converted:
            target, value = converted.popitem()
            value_X = value[0] if isinstance(value, list) else value
            parameter = self.slots[target].tensor
            get_local(parameter).copy_(value_X if conversion.keeps_first_dimension else value_X[find_rows(parameter)])


@dataclass(frozen=True)
class Shapes:
    """What conversions ask of a model: its config, and the full shapes of its tensors."""

    config: Any
    tensors: Mapping[str, Tensor]

    def get_parameter(self, name: str) -> Tensor:
        """Return the tensor of a name, without values."""
        return self.tensors[name]


def find_obstacle(folder: Path) -> str:
    """Return why the weights of a model folder cannot stay in their files until it is sharded; empty if they can."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except ValueError:
        return ""  # transformers says what is wrong with it
    return "its weights are quantised" if "quantization_config" in config else ""


def list_unread(model: Any, folder: Path) -> UnreadWeights:
    """Return the stored tensors of a folder that belong to a model; those that it does not have are left out.

    Raise StepError if a file is damaged.
    """
    weights, expected = Weights(folder), model.state_dict()
    modules = dict(model.named_modules())
    slots = {name: Slot(modules[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in expected}
    unread = UnreadWeights(folder, model, slots, Shapes(model.config, expected))
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    for key in sorted(weights.entries, key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, expected)
        if name not in expected and key in expected:
            name, pattern = rename_source_key(key, [], [], model.base_model_prefix, expected)
        if name in expected and pattern is None:
            unread.plain[name] = weights.open(key)
        elif name in expected and pattern is not None:
            conversion = unread.converted.setdefault(name, Conversion(by_pattern[pattern]))
            conversion.sources.setdefault(pattern, []).append(weights.open(key))
    _settle_ties(unread)
    return unread


def _settle_ties(unread: UnreadWeights) -> None:
    """Tie tensors that the config ties and the files have twice, if they are equal; else leave them apart.

    `from_pretrained` does the same, but cannot compare tensors without values.
    """
    ties, plain, slots = unread.model.all_tied_weights_keys, unread.plain, unread.slots
    for target, source in list(ties.items()):
        if target not in plain or source not in plain:
            continue
        if _are_equal(plain[target], plain[source]):
            setattr(slots[target].module, slots[target].name, slots[source].tensor)
            del plain[target]
        else:
            del ties[target]


def _are_equal(one: StoredTensor, other: StoredTensor) -> bool:
    if one.shape != other.shape:
        return False
    parts = [slice(start, start + CHUNK) for start in range(0, one.numel(), CHUNK)]
    return all(torch.equal(one.read(part), other.read(part)) for part in parts)


def copy_rows(parameter: Any, stored: StoredTensor) -> None:
    """Copy a stored tensor into a parameter; into a sharded one the rows of this rank, which alone are read."""
    local, rows = get_local(parameter), find_rows(parameter)
    if not local.numel():
        return
    row = stored.numel() // max(1, parameter.shape[0]) if parameter.ndim else 1
    start = rows.start or 0
    local.copy_(stored.to(local.dtype).read(slice(start * row, start * row + local.numel())).view(local.shape))


def get_local(parameter: Any) -> Tensor:
    """Return what this rank has of a tensor: its shard, or the tensor itself."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def find_rows(parameter: Any) -> slice:
    """Return the entries of the first dimension that this rank has. Raise ValueError for another kind of shards."""
    if not hasattr(parameter, "to_local"):
        return slice(None)
    from torch.distributed.tensor import Shard

    if tuple(parameter.placements) != (Shard(0),):
        raise ValueError(f"shards by {parameter.placements}, not by rows")
    mesh, rows = parameter.device_mesh, parameter.shape[0]
    size = -(-rows // mesh.size())  # FSDP2 cuts as torch.chunk does
    return slice(min(rows, size * mesh.get_local_rank()), min(rows, size * (mesh.get_local_rank() + 1)))
