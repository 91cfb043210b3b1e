"""kind: reward_model — a scalar head trained on preferences."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.references import PolicyRef, PreferencePairsRef
from schemas.stages.base import BaseStage
from schemas.training import Training


class RewardModel(Training, BaseStage):
    """Bradley-Terry reward model: -log sigmoid(r_chosen - r_rejected - margin)."""

    can: ClassVar = frozenset({"train"})
    data_port: ClassVar = "data"
    learning_approach: ClassVar = "supervised"

    kind: Literal["reward_model"]
    model: PolicyRef
    """Model whose body is used; the head is new."""
    data: PreferencePairsRef
    """Prompts with a chosen and a rejected completion."""
    margin: bool = False
    """Subtract the pair's margin column inside the sigmoid (Llama 2, eq. 2)."""
    center_rewards_coefficient: float = Field(default=0.0, ge=0)
    """Pulls r_chosen + r_rejected towards zero (Eisenstein et al. 2023)."""
    validation_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of the prompts held out for accuracy, length bias and calibration."""
    max_length: int | None = Field(default=None, ge=2)
    """Tokens per prompt and completion, at most what the model holds (null: that); longer pairs are dropped."""
    per_device_train_batch_size: int = Field(default=32, ge=1)
    """Pairs per optimiser step."""
    num_train_epochs: float = Field(default=1.0, gt=0)
    """Passes over the data when max_steps is -1."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return a reward model and its held-out quality."""
        return {"model": "reward_model", "report": "directory"}
