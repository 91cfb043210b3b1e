"""kind: merge_search — the best of many merges by an evaluation on validation problems."""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema
from schemas.evaluation_slots import EvaluationTaskUse, MetricUse
from schemas.problem_sampling import ProblemSampling
from schemas.references import PolicyRef, PromptsRef
from schemas.stages.base import BaseStage, ReportSection

MAX_CANDIDATES = 1000
"""Most merges that a search may list."""
Value = bool | int | float


class MergeSpace(Schema):
    """Merges by one method: every combination of the listed values."""

    merge_method: str
    """Name of a method of the kind `merge`: linear, slerp, ties, …"""
    weight_steps: int | None = Field(default=None, ge=2, le=100)
    """Weights of the models that sum to 1, in steps of 1/n: 4 gives 0.25 and 0.75, 0.5 and 0.5, 0.75 and 0.25. Null:
    the weights are in `each`, or the method has none."""
    each: dict[str, list[Value]] = {}
    """Parameter to the values that every model tries independently of the others: `{weight: [0.5, 1.0]}`."""
    parameters: dict[str, list[Value]] = {}
    """Parameter to the values that all models try together: `{density: [0.3, 0.7]}`."""

    @model_validator(mode="after")
    def refuse_empty_spaces(self) -> Self:
        """Refuse parameters without values, and those that are set in two places."""
        places = {"each": self.each, "parameters": self.parameters}
        for place, values_by_name in places.items():
            if empty := [name for name, values in values_by_name.items() if not values]:
                raise ValueError(f"`{place}.{empty[0]}` lists no value")
        set_names = [*self.each, *self.parameters, *(["weight"] if self.weight_steps else [])]
        if twice := [name for name in set_names if set_names.count(name) > 1]:
            raise ValueError(f"`{twice[0]}` is set twice; keep one of `weight_steps`, `each` and `parameters`")
        return self


def count_merges(space: MergeSpace, models: int) -> int:
    """Return the number of merges of this many models."""
    shares = math.comb(space.weight_steps + models - 1, models - 1) - models if space.weight_steps else 1
    own = math.prod(len(values) ** models for values in space.each.values())
    return shares * own * math.prod(len(values) for values in space.parameters.values())


class MergeSearch(ProblemSampling, BaseStage):
    """Merge models in many ways, evaluate each merge on validation problems, and keep the best one."""

    fan_port: ClassVar = "models"
    single_keys: ClassVar = frozenset({"candidates"})
    scores_models: ClassVar = True
    report_section: ClassVar = ReportSection(detail="table", is_result=True)

    kind: Literal["merge_search"]
    models: dict[str, PolicyRef] = Field(min_length=2)
    """Models to merge, name to reference. They are evaluated, too, as what a merge has to beat."""
    base_model: PolicyRef | None = None
    """Base model of methods that merge differences from a base (task vectors)."""
    candidates: list[MergeSpace] = Field(min_length=1)
    """Merges to try; a single method needs no list."""
    max_candidates: int | None = Field(default=None, ge=1)
    """Most merges to try, drawn at random with the stage's seed from all that `candidates` lists; null: all."""
    metric: MetricUse = MetricUse(use="accuracy")
    """Metric whose mean over all problems chooses the merge: the highest value, of equal ones the first."""
    merge_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the arithmetic and of the merges; null: that of the first model."""
    held_out: list[EvaluationTaskUse] = []
    """Problems that the search must not see. Those of all evaluations of the recipe are added."""
    held_out_prompts: list[PromptsRef] = []
    """The same, made by stages."""

    @model_validator(mode="after")
    def check_search(self) -> Self:
        """Require problems, and refuse searches that are too large and sampling without variation."""
        if not self.tasks and self.prompts is None:
            raise ValueError("give `tasks` (generators of validation problems) or `prompts`")
        if self.num_generations > 1 and self.temperature == 0:
            raise ValueError("samples at temperature 0 are all equal; set `temperature`")
        total = sum(count_merges(space, len(self.models)) for space in self.candidates)
        if total > MAX_CANDIDATES:
            raise ValueError(f"`candidates` lists {total} merges; list at most {MAX_CANDIDATES}")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the best merge, and the report with every merge's result."""
        return {"model": "policy", "report": "eval_report"}
