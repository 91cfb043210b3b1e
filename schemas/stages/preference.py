"""kind: preference — direct optimisation on preference pairs."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from schemas.references import PolicyRef, PreferencePairsRef
from schemas.stages.base import BaseStage
from schemas.training import LoRA, Training
from schemas.use import PairLossUse


class Preference(Training, LoRA, BaseStage):
    """Make chosen completions likelier than rejected ones: DPO, its relatives, and regressions on win rates.

    `loss: dpo` is one loss, a list is their weighted sum. A loss asks for what it needs: a reference that none asks for
    is never loaded. Rounds on fresh pairs are a loop over `synthesize` and this.
    """

    can: ClassVar = frozenset({"train"})
    single_keys: ClassVar = frozenset({"loss"})
    data_port: ClassVar = "data"
    learning_approach: ClassVar = "supervised"

    kind: Literal["preference"]
    model: PolicyRef
    """Policy to start from."""
    data: PreferencePairsRef
    """Prompts with a chosen and a rejected completion."""
    loss: list[PairLossUse] = Field(default=[PairLossUse(use="dpo")], min_length=1)
    """Losses of a pair; their weighted sum is trained on. One alone needs no brackets."""
    reference: PolicyRef | None = None
    """Policy that log-ratios are against (`_ref`); null is the starting model."""
    previous: PolicyRef | None = None
    """Second such policy (`_prev`), in self-play that of the round before; null is the starting model."""
    validation_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share of the prompts held out for the accuracy of the implicit reward; 0 holds out none."""
    eval_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps between looks at the held-out pairs; null looks at the end."""
    max_length: int | None = Field(default=None, ge=2)
    """Tokens per prompt and completion, at most what the model holds (null: that); longer pairs are dropped."""
    per_device_train_batch_size: int = Field(default=32, ge=1)
    """Pairs per optimiser step."""
    max_tokens_per_micro_batch: int = Field(default=16_384, ge=1)
    """Token budget of one forward pass, a pair's prompt counted once; the gradient does not depend on it."""
    num_train_epochs: float = Field(default=1.0, gt=0)
    """Passes over the data when max_steps is -1."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the trained model."""
        return {"model": "adapter" if self.use_peft else "policy"}
