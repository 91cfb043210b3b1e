"""kind: reward_model — a scalar head trained on preferences."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.chat import Chat
from schemas.references import PolicyRef, PreferencePairsRef
from schemas.stages.base import BaseStage
from schemas.training import Evaluation, LoRA, Training


class RewardModel(Training, LoRA, Evaluation, Chat, BaseStage):
    """Bradley-Terry reward model: -log sigmoid(r_chosen - r_rejected - margin)."""

    can: ClassVar = frozenset({"train"})
    data_port: ClassVar = "data"
    learning_approach: ClassVar = "supervised"
    evaluation_metrics: ClassVar = ("eval_loss", "eval_accuracy")

    kind: Literal["reward_model"]
    model: PolicyRef
    """Model whose body is used; the scalar head is newly initialised, and always trained whole."""
    data: PreferencePairsRef
    """Prompts with a chosen and a rejected completion."""
    validation: PreferencePairsRef | None = None
    """Pairs to evaluate on, in place of those that `validation_fraction` holds out; null: no others."""
    margin: bool = False
    """Whether to subtract the pair's margin column inside the sigmoid (Llama 2, eq. 2)."""
    center_rewards_coefficient: float = Field(default=0.0, ge=0)
    """Coefficient of a penalty that pulls r_chosen + r_rejected towards zero (Eisenstein et al. 2023); 0: none."""
    validation_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of the prompts held out to measure accuracy, length bias and calibration."""
    max_length: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and completion, at most the model's maximum length (null: that); drops longer pairs."""
    per_device_train_batch_size: int = Field(default=32, ge=1)
    """Pairs per optimiser step."""
    num_train_epochs: float = Field(default=1.0, gt=0)
    """Passes over the data if `max_steps` is -1."""

    @property
    def holds_out(self) -> bool:
        """Whether there are rows to evaluate on."""
        return self.validation is not None or self.validation_fraction > 0

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return a reward model and a report on its quality on held-out pairs."""
        return {"model": "reward_model", "report": "directory"}
