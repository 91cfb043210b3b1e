"""kind: merge — a mergekit document, unchanged."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from schemas.base import Schema
from schemas.references import PolicyRef
from schemas.stages.base import BaseStage


class MergeInput(Schema):
    """One model of the merge."""

    model: PolicyRef
    """A stage of this recipe, or a model from outside."""
    parameters: dict[str, Any] = {}
    """Per model (`weight`, `density`, ...): a number, a gradient over the layers, or a list of {filter, value}."""


class MergeSource(Schema):
    """One source of a slice."""

    model: PolicyRef
    """Where the layers come from."""
    layer_range: tuple[int, int]
    """First layer and the one after the last."""
    parameters: dict[str, Any] = {}
    """As for a model."""


class MergeSlice(Schema):
    """A run of output layers made from equally long runs of the sources."""

    sources: list[MergeSource] = Field(min_length=1)
    """One run per model."""
    parameters: dict[str, Any] = {}
    """For this slice."""


class Merge(BaseStage):
    """Merge models tensor by tensor, in memory bounded by the largest tensor."""

    kind: Literal["merge"]
    merge_method: str
    """Name of a function in `learning/merge/methods.py`: linear, slerp, ties, dare_ties, dare_linear, …"""
    models: list[MergeInput] = []
    """Whole models; or give `slices`."""
    slices: list[MergeSlice] = []
    """Layer ranges; or give `models`."""
    base_model: PolicyRef | None = None
    """Base of the methods that work on differences."""
    parameters: dict[str, Any] = {}
    """For all tensors."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the arithmetic and the result; null keeps the first model's."""
    out_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the result where it differs."""
    tokenizer_source: Literal["base", "union"] | None = None
    """Known from mergekit; here all models must have one tokenizer, so both mean the first model's."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """The merged policy."""
        return {"model": "policy"}
