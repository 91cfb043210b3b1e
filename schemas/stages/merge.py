"""kind: merge — merging of models, in the format of a mergekit configuration."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import JsonObject, Schema
from schemas.references import PolicyRef
from schemas.stages.base import BaseStage


class MergeInput(Schema):
    """One model of the merge."""

    model: PolicyRef
    """Model to merge: a stage of this recipe, or a model from outside."""
    parameters: JsonObject = {}
    """Parameters of this model (`weight`, `density`, ...); a value is a number, a gradient over the layers, or a
    list of {filter, value}."""


class MergeSource(Schema):
    """One source of a slice."""

    model: PolicyRef
    """Model that the layers are taken from."""
    layer_range: tuple[int, int]
    """First layer and the layer after the last one (exclusive)."""
    parameters: JsonObject = {}
    """Parameters of this source, as in `models`."""


class MergeSlice(Schema):
    """A range of output layers, merged from ranges of the same length in the sources."""

    sources: list[MergeSource] = Field(min_length=1)
    """One layer range per model."""
    parameters: JsonObject = {}
    """Parameters of this slice."""


class Merge(BaseStage):
    """Merge models tensor by tensor, in memory bounded by the largest tensor."""

    fan_port: ClassVar = "models"

    kind: Literal["merge"]
    merge_method: str
    """Name of a function in `learning/merge/methods.py`: linear, slerp, ties, dare_ties, dare_linear, …"""
    models: list[MergeInput] = []
    """Models to merge as a whole; or give `slices`."""
    slices: list[MergeSlice] = []
    """Layer ranges to merge; or give `models`."""
    base_model: PolicyRef | None = None
    """Base model of methods that merge differences from a base (task vectors)."""
    parameters: JsonObject = {}
    """Parameters of all tensors, unless a model or slice sets its own."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the computation and the result; null: that of the first model."""
    out_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the result, if it differs from `dtype`."""
    tokenizer_source: Literal["base", "union"] | None = None
    """Accepted as in mergekit; all models must have the same tokenizer here, so both values mean the first model's."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the merged policy."""
        return {"model": "policy"}
