"""kind: init — a tokenizer and a randomly initialised model from a configuration."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from schemas.stages.base import BaseStage
from schemas.use import TokenizerUse


class Init(BaseStage):
    """Make a policy from nothing: a tokenizer and a model with random weights."""

    kind: Literal["init"]
    config: dict[str, Any] = Field(default={"model_type": "qwen3"})
    """A Hugging Face configuration: `model_type` and its arguments; vocabulary and special ids are the tokenizer's."""
    tokenizer: TokenizerUse = TokenizerUse(use="characters")
    """Tokenizer and chat template."""
    max_length: int = Field(default=256, ge=8)
    """Maximum length in tokens; part of the contract with later stages."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """A policy."""
        return {"model": "policy"}
