"""Training keys shared by stages, named as in Hugging Face's TrainingArguments, and bounds on training metrics."""

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema


class Training(Schema):
    """Optimiser (AdamW), learning-rate schedule and checkpoints."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the learning rate after the warm-up."""
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps in which the learning rate rises linearly from 0."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay, applied to matrices only."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay rate of the first moment."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay rate of the second moment."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Largest global gradient norm; larger gradients are clipped to it; null: no clipping."""
    max_steps: int = Field(default=-1, ge=-1)
    """Number of optimiser steps; -1: derived from num_train_epochs, in kinds that have it."""
    save_steps: int = Field(default=50, ge=1)
    """Optimiser steps between checkpoints, from which an interrupted step continues."""
    logging_steps: int = Field(default=10, ge=1)
    """Optimiser steps between points of the curves."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights during training."""
    bf16: bool = False
    """Whether to compute in bfloat16 while weights, gradients and optimiser state are float32."""
    gradient_checkpointing: bool = False
    """Whether to store only the inputs of blocks and recompute activations in the backward pass: saves memory, costs
    time."""

    @model_validator(mode="after")
    def refuse_no_steps(self) -> Self:
        """Refuse `max_steps: 0`."""
        if self.max_steps == 0:
            raise ValueError("max_steps: 0 trains nothing; give a number of steps, or -1 to use num_train_epochs")
        return self

    @model_validator(mode="after")
    def refuse_bf16_with_bfloat16(self) -> Self:
        """Refuse `bf16` with weights that are not float32."""
        if self.bf16 and self.dtype != "float32":
            raise ValueError("bf16 computes in bfloat16 over float32 weights; remove `dtype` or `bf16`")
        return self


class LoRA(Schema):
    """Low-rank adapters (Hu et al. 2021), named as in TRL's ModelConfig."""

    use_peft: bool = False
    """Whether to train adapters instead of all weights."""
    lora_r: int = Field(default=16, ge=1)
    """Rank of the adapters."""
    lora_alpha: int = Field(default=32, ge=1)
    """Scale of the adapters: their output is multiplied by lora_alpha / lora_r."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability on the input of the adapters."""
    lora_target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the layers that get adapters."""


class Watch(Schema):
    """Bounds on a metric during training, and what happens when it leaves them.

    Metrics are those of `metrics.jsonl`: `kl_to_sampler`, `kl`, `entropy`, `completion_length`, `truncated`, `reward`,
    `grad_norm`, `logprob_gap`, `eval_reward`, and `reward_gap` (training reward minus held-out reward).
    """

    metric: str = Field(min_length=1)
    """Name of the metric."""
    min: float | None = None
    """Smallest allowed value; null: no lower bound."""
    max: float | None = None
    """Largest allowed value; null: no upper bound."""
    patience: int = Field(default=1, ge=1)
    """Consecutive iterations outside the bounds before `action` is taken."""
    action: Literal["stop", "roll_back", "warn"] = "stop"
    """`stop` ends the stage with the last good weights; `roll_back` continues from them with a lower learning rate."""
    learning_rate_factor: float = Field(default=0.5, gt=0, lt=1)
    """Factor by which `roll_back` multiplies the learning rate."""

    @model_validator(mode="after")
    def require_bound(self) -> Self:
        """Require at least one of `min` and `max`."""
        if self.min is None and self.max is None:
            raise ValueError("give `min` or `max`, or both")
        return self
