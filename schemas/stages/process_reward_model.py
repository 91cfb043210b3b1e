"""kind: process_reward_model — a scalar head trained on labels of steps."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.chat import Chat
from schemas.references import PolicyRef, StepLabelsRef
from schemas.stages.base import BaseStage
from schemas.training import Evaluation, Training


class ProcessRewardModel(Training, Evaluation, Chat, BaseStage):
    """Process reward model: the probability that each step of a solution is right, by cross-entropy at its last token.

    Uesato et al. 2022, Lightman et al. 2023; the reward `models.process` reads it.
    """

    data_port: ClassVar = "data"
    learning_approach: ClassVar = "supervised"
    evaluation_metrics: ClassVar = ("eval_loss", "eval_accuracy")

    kind: Literal["process_reward_model"]
    model: PolicyRef
    """Model whose body is used; the scalar head starts at zero."""
    data: StepLabelsRef
    """Prompts with the steps of a solution and a label per step."""
    validation: StepLabelsRef | None = None
    """Solutions to evaluate on, in place of those that `validation_fraction` holds out; null: no others."""
    step_separator: str = Field(default="\n", min_length=1)
    """Text that ends each step; its last token is where the step is scored, in training and as a reward."""
    prompt_label: str | None = Field(default=None, min_length=1)
    """Key of the metadata with a label of the prompt, whose last token is then scored, too: the model is a value
    function, which `auxiliary_models` read with `head: state`; null: steps alone are scored."""
    train_on_last_step_only: bool = False
    """Whether only the label of the last step of a solution is learned, as by an outcome reward model."""
    validation_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of the prompts held out to measure accuracy."""
    max_length: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and steps, at most the model's maximum length (null: that); what is beyond is cut off."""
    per_device_train_batch_size: int = Field(default=32, ge=1)
    """Solutions per optimiser step."""
    num_train_epochs: float = Field(default=1.0, gt=0)
    """Passes over the data if `max_steps` is -1."""

    @property
    def holds_out(self) -> bool:
        """Whether there are rows to evaluate on."""
        return self.validation is not None or self.validation_fraction > 0

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return a process reward model and a report on its quality on held-out solutions."""
        return {"model": "process_reward_model", "report": "directory"}
