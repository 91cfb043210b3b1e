"""kind: init — a tokenizer and a randomly initialised model from a configuration."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import JsonObject
from schemas.references import PolicyRef
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
    """Create a policy without pretrained weights: a tokenizer and a randomly initialised model.

    With `model`, a model that exists gets new tokens instead; their embeddings are the mean of the others, and training
    learns them.
    """

    defines_model: ClassVar = True

    kind: Literal["init"]
    config: JsonObject = Field(default=SMALL)
    """Hugging Face configuration: `model_type` and its arguments; vocabulary size and special token ids are set from
    the tokenizer.

    Arguments that are left out have Hugging Face's defaults, which suit large models. The default of the whole
    field is the quickstart's model.
    """
    model: PolicyRef | None = None
    """Model that gets `added_tokens`, instead of a new one from `config`, `tokenizer` and `max_length`."""
    tokenizer: TokenizerUse = TokenizerUse(use="characters")
    """Tokenizer and chat template: built (`characters`), trained on rows (`bpe`, `unigram`, `wordpiece`), or that of a
    folder, GGUF file or model on the hub (`path:./folder`, `hub:org/name`)."""
    added_tokens: list[str] = []
    """Texts that become one token each, at the end of the vocabulary. They stay visible in
    completions, so rewards can read `<think>`."""
    max_length: int = Field(default=256, ge=8)
    """Maximum sequence length of the model in tokens; part of its contract with later stages."""

    @model_validator(mode="after")
    def refuse_keys_of_a_new_model(self) -> Self:
        """Require `added_tokens` with `model`, and refuse the keys of a new model."""
        if self.model is None:
            return self
        if set_too := sorted(self.model_fields_set & {"config", "tokenizer", "max_length"}):
            raise ValueError(f"`{set_too[0]}` is for a new model: remove it, or remove `model`")
        if not self.added_tokens:
            raise ValueError("`model` without `added_tokens` changes nothing: name the new tokens")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return a policy."""
        return {"model": "policy"}
