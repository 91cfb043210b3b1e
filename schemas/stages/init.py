"""kind: init — a tokenizer and a randomly initialised model from a configuration."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import JsonObject
from schemas.stages.base import BaseStage
from schemas.use import TokenizerUse

SMALL = {
    "model_type": "qwen3",
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "tie_word_embeddings": True,
}
"""What two cores train in minutes: the quickstart's model."""


class Init(BaseStage):
    """Make a policy from nothing: a tokenizer and a model with random weights."""

    defines_model: ClassVar = True

    kind: Literal["init"]
    config: JsonObject = Field(default=SMALL)
    """A Hugging Face configuration: `model_type` and its arguments; vocabulary and special ids are the tokenizer's.

    Arguments that are left out have the values of Hugging Face, which are those of large models; without any
    configuration the model is that of the quickstart.
    """
    tokenizer: TokenizerUse = TokenizerUse(use="characters")
    """Tokenizer and chat template."""
    max_length: int = Field(default=256, ge=8)
    """Maximum length in tokens; part of the contract with later stages."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return a policy."""
        return {"model": "policy"}
