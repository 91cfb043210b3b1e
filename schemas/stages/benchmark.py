"""kind: benchmark — one table over several evaluations of the same methods, each trained with several seeds."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.references import EvalReportRef
from schemas.stages.base import BaseStage, ReportSection


class Benchmark(BaseStage):
    """Compare methods over worlds and seeds: interquartile mean, probability of improvement, their intervals.

    Reads reports alone. A method is what the names of a report's models share without the stage and the seed: `ppo` in
    `cartpole@algorithm=ppo,seed=1` is the method `algorithm=ppo`.
    """

    shares_tokens: ClassVar = False
    scores_models: ClassVar = True
    report_section: ClassVar = ReportSection(detail="table", is_result=True)

    kind: Literal["benchmark"]
    reports: dict[str, EvalReportRef] = Field(min_length=1)
    """Evaluation of all runs in one world, by the world's name."""
    metric: str = Field(default="mean_return", min_length=1)
    """Metric of the evaluations."""
    bounds: dict[str, tuple[float, float]] = {}
    """World to the values that count as 0 and as 1, such as those of a random policy and of an expert; without, values
    count as they are."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Confidence level of all intervals."""
    num_bootstrap: int = Field(default=10000, ge=100)
    """Number of resamples in the stratified bootstrap."""

    @model_validator(mode="after")
    def check_bounds(self) -> Self:
        """Refuse bounds of some worlds alone, and equal ones."""
        if self.bounds and self.bounds.keys() != self.reports.keys():
            raise ValueError(f"`bounds` must name the worlds of `reports`: {', '.join(self.reports)}; or none")
        if same := [name for name, (low, high) in self.bounds.items() if low == high]:
            raise ValueError(f"`bounds.{same[0]}`: the two values are equal")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the report, with a line per method and world."""
        return {"report": "eval_report"}
