"""Training keys shared by stages, named as in Hugging Face's TrainingArguments, and watchdogs of a training loop."""

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema


class Training(Schema):
    """Optimiser, schedule and checkpoints. AdamW."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up."""
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps in which the rate rises linearly from 0."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay, on matrices only."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """First-moment decay."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """Second-moment decay."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Clip the global gradient norm; null leaves it."""
    max_steps: int = Field(default=-1, ge=-1)
    """Optimiser steps; -1 derives them from num_train_epochs where the kind has it."""
    save_steps: int = Field(default=50, ge=1)
    """Optimiser steps between checkpoints from which a killed step continues."""
    logging_steps: int = Field(default=10, ge=1)
    """Optimiser steps between points of the curves."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights in training."""
    bf16: bool = False
    """Compute in bfloat16 over weights, gradients and optimiser in float32."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of blocks and compute the rest again in the backward pass: less memory, more time."""

    @model_validator(mode="after")
    def something_trained(self) -> Self:
        """max_steps of 0 trains nothing."""
        if self.max_steps == 0:
            raise ValueError("max_steps: 0 trains nothing; give a number of steps, or -1 to use num_train_epochs")
        return self

    @model_validator(mode="after")
    def one_precision(self) -> Self:
        """bf16 is about weights in float32."""
        if self.bf16 and self.dtype != "float32":
            raise ValueError("bf16: computes in bfloat16 over float32 weights; leave `dtype` out, or bf16")
        return self


class LoRA(Schema):
    """Low-rank adapters (Hu et al. 2021), named as in TRL's ModelConfig."""

    use_peft: bool = False
    """Train adapters instead of all weights."""
    lora_r: int = Field(default=16, ge=1)
    """Rank."""
    lora_alpha: int = Field(default=32, ge=1)
    """Scale: updates are multiplied by lora_alpha / lora_r."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout before the adapter."""
    lora_target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the layers that get adapters."""


class Watch(Schema):
    """A point of the curves that must stay between two bounds.

    Points are those of `metrics.jsonl`: `kl_to_sampler`, `kl`, `entropy`, `completion_length`, `truncated`, `reward`,
    `grad_norm`, `logprob_gap`, `eval_reward`, and `reward_gap` (training reward minus held-out reward).
    """

    metric: str = Field(min_length=1)
    """Name of the point."""
    min: float | None = None
    """Smallest value allowed."""
    max: float | None = None
    """Largest value allowed."""
    patience: int = Field(default=1, ge=1)
    """Iterations in a row outside the band before anything happens."""
    action: Literal["stop", "roll_back", "warn"] = "stop"
    """`stop` ends the stage with the last good weights; `roll_back` goes on from them with a lower learning rate."""
    learning_rate_factor: float = Field(default=0.5, gt=0, lt=1)
    """What `roll_back` multiplies the learning rate by."""

    @model_validator(mode="after")
    def some_bound(self) -> Self:
        """A band without a bound is never left."""
        if self.min is None and self.max is None:
            raise ValueError("give `min` or `max`, or both")
        return self
