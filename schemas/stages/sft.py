"""kind: sft — supervised fine-tuning on completions."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.chat import Chat
from schemas.references import ChatRef, PolicyRef
from schemas.stages.base import BaseStage, ReportSection
from schemas.training import Evaluation, LoRA, Training


class Sft(Training, LoRA, Evaluation, Chat, BaseStage):
    """Supervised fine-tuning; the loss is the mean cross-entropy of the learned tokens of the whole batch."""

    can: ClassVar = frozenset({"train"})
    data_port: ClassVar = "data"
    report_section: ClassVar = ReportSection(detail="lengths")
    learning_approach: ClassVar = "supervised"
    training_signal: ClassVar = "demonstrations"
    evaluation_metrics: ClassVar = ("eval_loss", "eval_loss/", "eval_mean_token_accuracy")

    kind: Literal["sft"]
    model: PolicyRef
    """Model to start from."""
    data: ChatRef
    """Prompts with completions."""
    validation: ChatRef | None = None
    """Rows to evaluate on, in place of those that `validation_fraction` holds out; null: no others."""
    max_length: int | None = Field(default=None, ge=2)
    """Most tokens per row, at most the model's maximum length (null: that)."""
    long_rows: Literal["drop", "truncate", "split"] = "drop"
    """What happens with rows over `max_length`, which are counted: they are left out, cut off after the limit, or cut
    into parts of at most that length, which overlap by one token. Parts without a learned token are left out."""
    train_on: Literal["last", "all", "marked"] = "last"
    """Messages of the assistant that have a loss, with the tokens that end them: the last, all, or those with
    `train: true` (where no message has this key: what the chat template's `{% generation %}` tags enclose)."""
    packing: bool = False
    """Whether to pack several rows into one sequence; a row never attends to another one."""
    per_device_train_batch_size: int = Field(default=32, ge=1)
    """Rows (or packed sequences) per forward pass."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Forward passes per optimiser step; the gradient is that of one large batch."""
    shuffle: bool = True
    """Whether each epoch has a random order of its own; false: the order of the data."""
    num_train_epochs: float = Field(default=1.0, gt=0)
    """Passes over the data if `max_steps` is -1."""

    @model_validator(mode="after")
    def refuse_mixed_options(self) -> Self:
        """Refuse two sets of rows to evaluate on, and an order of the data that packing would change."""
        if self.validation is not None and self.validation_fraction:
            raise ValueError("validation: `validation_fraction` holds rows out, too; remove one of the two")
        if self.packing and not self.shuffle:
            raise ValueError("shuffle: packing puts rows together by their lengths; remove `packing`")
        return self

    @property
    def holds_out(self) -> bool:
        """Whether there are rows to evaluate on."""
        return self.validation is not None or self.validation_fraction > 0

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the trained model."""
        return {"model": "adapter" if self.use_peft else "policy"}
