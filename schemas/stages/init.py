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
"""Configuration of the quickstart's model, which trains on two cores within minutes."""


class Init(BaseStage):
    """Create a policy without pretrained weights: a tokenizer and a randomly initialised model."""

    defines_model: ClassVar = True

    kind: Literal["init"]
    config: JsonObject = Field(default=SMALL)
    """Hugging Face configuration: `model_type` and its arguments; vocabulary size and special token ids are set from
    the tokenizer.

    Arguments that are left out have Hugging Face's defaults, which suit large models. The default of the whole
    field is the quickstart's model.
    """
    tokenizer: TokenizerUse = TokenizerUse(use="characters")
    """Tokenizer and chat template."""
    max_length: int = Field(default=256, ge=8)
    """Maximum sequence length of the model in tokens; part of its contract with later stages."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return a policy."""
        return {"model": "policy"}
