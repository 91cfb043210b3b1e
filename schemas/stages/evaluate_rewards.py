"""kind: evaluate_rewards — how often reward models score the chosen completion above the rejected one."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.evaluation_slots import MetricUse
from schemas.gates import Gate, refuse_unusable_gates
from schemas.references import PreferencePairsRef, RewardModelRef
from schemas.stages.base import BaseStage, ReportSection
from schemas.training import Dtype


class EvaluateRewards(BaseStage):
    """Accuracy of reward models on the same pairs, in all and by family, as RewardBench measures it."""

    fan_port: ClassVar = "models"
    single_keys: ClassVar = frozenset({"gate"})
    shares_tokens: ClassVar = False
    scores_models: ClassVar = True
    report_section: ClassVar = ReportSection(detail="table", is_result=True)

    kind: Literal["evaluate_rewards"]
    models: dict[str, RewardModelRef] = Field(min_length=1)
    """Reward models to evaluate in one table, in this order: name to reference."""
    data: PreferencePairsRef
    """Prompts with a chosen and a rejected completion; `family` names the subset of a pair."""
    metrics: list[MetricUse] = Field(default=[MetricUse(use="accuracy")], min_length=1)
    """Metrics in the table. A pair scores 1 if the chosen completion has the higher reward, 0.5 at a tie, else 0; only
    1 counts as correct."""
    max_length: int | None = Field(default=None, ge=2)
    """Most tokens of prompt and completion, at most a model's own limit (null: that); longer pairs are not counted."""
    dtype: Dtype = "float32"
    """Precision of the weights."""
    limit: int | None = Field(default=None, ge=1)
    """Most pairs; null: all."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Confidence level of all intervals."""
    num_bootstrap: int = Field(default=10000, ge=100)
    """Number of resamples in the paired bootstrap."""
    gate: list[Gate] = []
    """Conditions on the results; a single one needs no list. `against` names one of `models`."""

    @model_validator(mode="after")
    def check_gates(self) -> Self:
        """Refuse gates against models that are not evaluated here, and repeats of what has no noise."""
        refuse_unusable_gates(self.gate, self.models, "rewards are not sampled")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the report, with table, comparisons, gates and both rewards of every pair."""
        return {"report": "eval_report"}
