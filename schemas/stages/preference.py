"""kind: preference — direct optimisation on preference pairs."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.chat import Chat
from schemas.references import PolicyRef, PreferencePairsRef
from schemas.stages.base import BaseStage
from schemas.training import Evaluation, LoRA, Training
from schemas.use import PairLossUse


class Preference(Training, LoRA, Evaluation, Chat, BaseStage):
    """Make chosen completions likelier than rejected ones: DPO, its relatives, and regressions on win rates.

    `loss: dpo` is one loss; a list is the weighted sum of its losses. The reference is loaded only if a loss needs its
    log-probabilities. For several rounds on new pairs, write a loop over `synthesize` and this stage.
    """

    can: ClassVar = frozenset({"train"})
    single_keys: ClassVar = frozenset({"loss"})
    data_port: ClassVar = "data"
    learning_approach: ClassVar = "supervised"
    training_signal: ClassVar = "preferences"
    evaluation_metrics: ClassVar = (
        "eval_loss",
        *(f"eval_rewards/{name}" for name in ("accuracies", "margins", "chosen", "rejected")),
        *(f"eval_logps/{side}" for side in ("chosen", "rejected")),
    )

    kind: Literal["preference"]
    model: PolicyRef
    """Policy to start from."""
    data: PreferencePairsRef
    """Prompts with a chosen and a rejected completion; of episodes of several turns, the assistant's are trained on."""
    validation: PreferencePairsRef | None = None
    """Pairs to evaluate on, in place of those that `validation_fraction` holds out; null: no others."""
    loss: list[PairLossUse] = Field(default=[PairLossUse(use="dpo")], min_length=1)
    """Losses of a pair; their weighted sum is minimised. A single one needs no brackets."""
    reference: PolicyRef | None = None
    """Reference policy of the log-ratios (columns `_ref`); null: the starting model."""
    previous: PolicyRef | None = None
    """Second reference policy (columns `_prev`), in self-play that of the previous round; null: the starting model."""
    validation_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share of the prompts held out to measure the accuracy of the implicit reward; 0: none."""
    max_length: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and completion, at most the model's maximum length (null: that)."""
    long_rows: Literal["drop", "truncate"] = "drop"
    """What happens with longer pairs, which are counted: they are left out, or their completions are cut off after the
    limit. Pairs whose prompt leaves no room, or whose sides are equal then, are left out."""
    per_device_train_batch_size: int = Field(default=32, ge=1)
    """Pairs per optimiser step."""
    max_tokens_per_micro_batch: int = Field(default=16_384, ge=1)
    """Most tokens per forward pass, a pair's prompt counted once; does not change the gradient."""
    shuffle: bool = True
    """Whether each epoch has a random order of its own; false: the order of the data."""
    num_train_epochs: float = Field(default=1.0, gt=0)
    """Passes over the data if `max_steps` is -1."""

    @property
    def holds_out(self) -> bool:
        """Whether there are rows to evaluate on."""
        return self.validation is not None or self.validation_fraction > 0

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the trained model."""
        return {"model": "adapter" if self.use_peft else "policy"}
