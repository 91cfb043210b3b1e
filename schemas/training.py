"""Training keys shared by stages, named as in Hugging Face's TrainingArguments, and bounds on training metrics."""

import re
from collections.abc import Collection
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from schemas.base import JsonObject, Schema, WithOptionalCode
from schemas.errors import printable
from schemas.learning_rates import FROM_SCRATCH
from schemas.schedule_phases import find_schedule_problem
from schemas.suggestions import suggest

Optimizer = Literal["adamw", "adafactor", "lion", "muon", "adamw_8bit", "lion_8bit"]
EIGHT_BIT: tuple[Optimizer, ...] = ("adamw_8bit", "lion_8bit")
"""Optimisers with quantised state, by bitsandbytes."""
WHOLE_ONLY: tuple[Optimizer, ...] = ("adafactor", *EIGHT_BIT)
"""Optimisers that need whole tensors: none for shards."""
OPTIMIZER_CODE: dict[Optimizer, tuple[str, str]] = {
    "lion": ("learning.models.optimizers", "make_lion"),
    "muon": ("learning.models.optimizers", "make_muon"),
    **dict.fromkeys(EIGHT_BIT, ("learning.models.optimizers", "make_eight_bit")),
}
"""Optimisers that torch does not have: module and name of the function that makes one."""
ADAPTER_CODE = {
    **{name: ("learning.models.adapters", name) for name in ("attach_adapters", "write_adapters", "remove_adapters")},
    "refer_to_base": ("learning.models.adapted_policy", "refer_to_base"),
}
"""What a stage that trains adapters needs besides."""
QUANTISED_CODE = {"quantise": ("learning.models.quantised", "quantise")}
"""What a stage that trains adapters over quantised weights needs besides."""
Dtype = Literal["float32", "bfloat16"]
Schedule = Literal["constant", "linear", "cosine", "cosine_with_min_lr", "warmup_stable_decay"]
SCHEDULE_OPTIONS: dict[str, tuple[Schedule, ...]] = {
    "min_lr_ratio": ("cosine_with_min_lr", "warmup_stable_decay"),
    "num_decay_steps": ("warmup_stable_decay",),
    "decay_type": ("warmup_stable_decay",),
}
"""Options of a learning-rate schedule: the schedules that have them."""


def hide_default(schema: JsonObject) -> None:
    """Remove the default from a key's schema for editors: a recipe that sets none gets another value."""
    schema.pop("default", None)


class Training(WithOptionalCode):
    """Optimiser, learning-rate schedule and checkpoints."""

    optim: Optimizer = "adamw"
    """Optimiser. `muon` trains the matrices of the blocks, AdamW everything else; `adafactor` has no first moment and a
    learning rate relative to the size of each tensor; `_8bit` has quantised state and needs bitsandbytes."""
    learning_rate: float = Field(default=FROM_SCRATCH.default, gt=0, json_schema_extra=hide_default)
    """Peak learning rate. A recipe that sets none gets the usual one for what the stage trains: 2e-5 in sft, 1e-5 in
    reward_model, 1e-6 in rl and preference; ten times that with LoRA; 1e-3 for a model of an init stage."""
    lr_scheduler_type: Schedule = "constant"
    """Shape of the learning rate after the warm-up: constant, falling to 0 (`linear`, `cosine`) or to `min_lr_ratio`,
    or constant until the last `num_decay_steps` (`warmup_stable_decay`)."""
    min_lr_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Learning rate at the end, as a share of `learning_rate`; of `cosine_with_min_lr` and `warmup_stable_decay`."""
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps in which the learning rate rises linearly from 0."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of these steps, instead of `warmup_ratio`."""
    num_decay_steps: int | None = Field(default=None, ge=1)
    """Steps of the decay of `warmup_stable_decay`; null: a tenth of all steps."""
    decay_type: Literal["linear", "cosine", "1-sqrt"] = "cosine"
    """Shape of the decay of `warmup_stable_decay`."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay, applied to matrices only."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay rate of the first moment (AdamW); interpolation of the update (Lion, β1)."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay rate of the second moment (AdamW); of the only moment (Lion, β2, 0.99 in its paper)."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Largest global gradient norm; larger gradients are clipped to it; null: no clipping."""
    max_steps: int = Field(default=-1, ge=-1)
    """Number of optimiser steps; -1: derived from num_train_epochs, in kinds that have it."""
    save_steps: int = Field(default=50, ge=1)
    """Optimiser steps between checkpoints, from which an interrupted step continues."""
    logging_steps: int = Field(default=10, ge=1)
    """Optimiser steps between points of the curves."""
    dtype: Dtype = "float32"
    """Precision of the weights during training."""
    bf16: bool = False
    """Whether to compute in bfloat16 while weights, gradients and optimiser state are float32."""
    gradient_checkpointing: bool = False
    """Whether to store only the inputs of blocks and recompute activations in the backward pass: saves memory, costs
    time."""

    contaminated_rows: Literal["warn", "drop", "stop", "allow"] = "warn"
    """What happens with rows that ask a problem of an evaluation of the recipe: `validate`, `run` and the evaluation of
    the model say so; they are left out before training; the run stops before it; or they are trained on. Rows of a
    `curate` stage that decontaminates have none. Not part of the key."""

    def optional_code(self, asked: Collection[str] = ()) -> dict[str, tuple[str, str]]:
        """Add the code of the optimiser, unless torch has it."""
        own = {"optimizer": OPTIMIZER_CODE[self.optim]} if self.optim in OPTIMIZER_CODE else {}
        return super().optional_code(asked) | own

    @model_validator(mode="after")
    def refuse_no_steps(self) -> Self:
        """Refuse `max_steps: 0`."""
        if self.max_steps == 0:
            raise ValueError("max_steps: 0 trains nothing; give a number of steps, or -1 to use num_train_epochs")
        return self

    @model_validator(mode="after")
    def refuse_mixed_schedules(self) -> Self:
        """Refuse options of another schedule, and phases that are longer than the training."""
        if self.warmup_ratio and self.warmup_steps:
            raise ValueError("give `warmup_ratio` or `warmup_steps`, not both")
        kind = self.lr_scheduler_type
        if kind == "cosine_with_min_lr" and not self.min_lr_ratio:
            raise ValueError("lr_scheduler_type: cosine_with_min_lr needs `min_lr_ratio`, its last learning rate")
        for option, kinds in SCHEDULE_OPTIONS.items():
            if getattr(self, option) != type(self).model_fields[option].default and kind not in kinds:
                raise ValueError(f"{option}: is for `lr_scheduler_type: {' | '.join(kinds)}`, not {kind}; leave it out")
        if self.max_steps > 0 and (problem := find_schedule_problem(self, self.max_steps)):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def refuse_moments_of_adafactor(self) -> Self:
        """Refuse decay rates of moments with Adafactor, whose decay rate follows from the step."""
        for option in ("adam_beta1", "adam_beta2"):
            if self.optim == "adafactor" and getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(f"{option}: adafactor has no such number; leave it out")
        return self

    @model_validator(mode="after")
    def refuse_bf16_with_bfloat16(self) -> Self:
        """Refuse `bf16` with weights that are not float32."""
        if self.bf16 and self.dtype != "float32":
            raise ValueError("bf16 computes in bfloat16 over float32 weights; remove `dtype` or `bf16`")
        return self


class Evaluation(Schema):
    """Loss on held-out rows during training, early stopping, and the choice of the best weights."""

    validation_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the prompts that is held out and not trained on; 0: none."""
    eval_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps between evaluations on the held-out rows; null: one at the end."""
    metric_for_best_model: str = "eval_loss"
    """Metric of the evaluations by which they are compared, as the curves name it."""
    greater_is_better: bool | None = None
    """Whether a higher value of that metric is better; null: yes, except of a loss."""
    early_stopping_patience: int | None = Field(default=None, ge=1)
    """Evaluations in a row without a better `metric_for_best_model` after which training ends; null: it takes all its
    steps."""
    load_best_model_at_end: bool = False
    """Whether the output has the weights of the evaluation with the best `metric_for_best_model` instead of the last
    ones."""
    evaluation_metrics: ClassVar[tuple[str, ...]] = ("eval_loss",)
    """Names that `metric_for_best_model` may have; one that ends with `/` stands for all that begin with it."""

    @property
    def holds_out(self) -> bool:
        """Whether there are rows to evaluate on."""
        return self.validation_fraction > 0

    @model_validator(mode="after")
    def refuse_choice_without_evaluation(self) -> Self:
        """Refuse options of evaluation if nothing is held out, or if there is only one evaluation."""
        if self.eval_steps and not self.holds_out:
            raise ValueError("eval_steps: no rows are held out; set `validation_fraction` or `validation`")
        chooses = [option for option in ("early_stopping_patience", "load_best_model_at_end") if getattr(self, option)]
        if chooses and not self.eval_steps:
            raise ValueError(f"{chooses[0]}: compares evaluations during training; set `eval_steps`")
        for option in ("metric_for_best_model", "greater_is_better"):
            if not chooses and getattr(self, option) != Evaluation.model_fields[option].default:
                needed = "`load_best_model_at_end` or `early_stopping_patience`"
                raise ValueError(f"{option}: nothing compares evaluations; add {needed}, or leave it out")
        return self

    @field_validator("metric_for_best_model")
    @classmethod
    def refuse_unknown_metric(cls, metric: str) -> str:
        """Refuse a metric that no evaluation of this kind of stage has."""
        known = cls.evaluation_metrics
        if metric not in known and not any(metric.startswith(name) for name in known if name.endswith("/")):
            raise ValueError(f"evaluations have no metric `{printable(metric)}`; {suggest(metric, known, 'metrics')}")
        return metric


ALL_LINEAR = "all-linear"
"""All linear modules of the language part but the head."""


class LoRA(WithOptionalCode):
    """Low-rank adapters (Hu et al. 2021), named as in TRL's ModelConfig and PEFT's LoraConfig."""

    use_peft: bool = False
    """Whether to train adapters instead of all weights."""
    lora_r: int = Field(default=16, ge=1)
    """Rank of the adapters."""
    lora_alpha: int = Field(default=32, ge=1)
    """Scale of the adapters: their output is multiplied by lora_alpha / lora_r."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout probability on the input of the adapters."""
    lora_target_modules: list[str] | str = ALL_LINEAR
    """Modules that get adapters: a list of names or ends of dotted names, a regular expression that matches whole
    dotted names, or `all-linear` (all of the language part but the head)."""
    modules_to_save: list[str] = []
    """Modules that are trained whole and saved with the adapters, by names or ends of dotted names."""
    use_rslora: bool = False
    """Whether to multiply by lora_alpha / √lora_r instead (rsLoRA, Kalajdzievski 2023)."""
    use_dora: bool = False
    """Whether to train direction and length of the weights' columns apart (DoRA, Liu et al. 2024)."""
    load_in_4bit: bool = False
    """Whether the weights under the adapters are stored in 4 bits (QLoRA, Dettmers et al. 2023); they are multiplied in
    `dtype`. Needs bitsandbytes."""
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    """The 16 values of a weight in 4 bits: those of normally distributed weights, or of a floating-point number."""
    use_bnb_nested_quant: bool = False
    """Whether the scales of the blocks are stored in 8 bits too (double quantisation)."""

    def optional_code(self, asked: Collection[str] = ()) -> dict[str, tuple[str, str]]:
        """Add the code of adapters with `use_peft`, and that of quantised weights."""
        own = (ADAPTER_CODE if self.use_peft else {}) | (QUANTISED_CODE if self.use_peft and self.load_in_4bit else {})
        return super().optional_code(asked) | own

    @model_validator(mode="after")
    def refuse_options_without_adapters(self) -> Self:
        """Refuse options of adapters where none are trained; `use_peft: false` in a stage switches them off."""
        if not self.use_peft and "use_peft" not in self.model_fields_set:
            for option in LoRA.model_fields:
                if option in self.model_fields_set:
                    raise ValueError(f"{option}: has an effect only with `use_peft: true`; add that, or leave it out")
        return self

    @model_validator(mode="after")
    def refuse_options_without_quantisation(self) -> Self:
        """Refuse options of quantised weights where they have no effect."""
        for option in ("bnb_4bit_quant_type", "use_bnb_nested_quant"):
            if not self.load_in_4bit and getattr(self, option) != LoRA.model_fields[option].default:
                raise ValueError(f"{option}: has an effect only with `load_in_4bit: true`; add that, or leave it out")
        return self

    @field_validator("lora_target_modules")
    @classmethod
    def refuse_wrong_targets(cls, targets: list[str] | str) -> list[str] | str:
        """Refuse no targets, and an expression that is none."""
        if not targets or (isinstance(targets, list) and "" in targets):
            raise ValueError("names nothing; leave it out for all linear modules")
        if isinstance(targets, list) and ALL_LINEAR in targets:
            raise ValueError(f"write `{ALL_LINEAR}` without a list")
        if isinstance(targets, str):
            try:
                re.compile(targets)
            except re.error as error:
                raise ValueError(f"{targets!r} is not a regular expression: {error}") from None
        return targets


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
