"""kind: search — the settings of a training stage, chosen by an evaluation of what they train."""

import math
from collections.abc import Collection, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from schemas.evaluation_slots import SCORED_TASKS
from schemas.references import ControlPolicyRef, EvalReportRef, Reference
from schemas.search_space import Range, Value
from schemas.stages.base import BaseStage, ReportSection
from schemas.stages.control import Control
from schemas.stages.evaluate import Evaluate
from schemas.stages.evaluate_control import EvaluateControl
from schemas.stages.preference import Preference
from schemas.stages.rl import Rl
from schemas.stages.sft import Sft
from schemas.use import Use

Trained = Annotated[Sft | Preference | Rl | Control, Field(discriminator="kind")]
Evaluated = Annotated[Evaluate | EvaluateControl, Field(discriminator="kind")]
MAX_TRIALS = 1000


class TrainedRef(Reference):
    """A model that a stage of this recipe trains."""

    accepts = ("policy", "adapter", *ControlPolicyRef.accepts)


class SamplerUse(Use):
    """Picks the settings of the next trial from the results of those before: a sampler of Optuna, or a `Proposer`."""

    home = ("learning.search.samplers", "learning.search.populations")
    takes = ("seed",)


class Search(BaseStage):
    """Train a stage of the recipe with other settings, evaluate each model, and keep the best one.

    `train` names the stage whose settings are varied, `evaluate` the stage that evaluates its model on validation
    problems or starts. The model of `train` itself is the baseline.
    """

    shares_tokens: ClassVar = False
    report_section: ClassVar = ReportSection(detail="search", is_result=True)
    filled_in: ClassVar = frozenset({"trained", "evaluated"})

    kind: Literal["search"]
    train: TrainedRef
    """Stage whose settings are varied; its model is what a trial must beat."""
    evaluate: EvalReportRef
    """Stage of kind evaluate or evaluate_control with the model of `train` among its `models`."""
    space: dict[str, Range | list[Value]] = Field(min_length=1)
    """Setting of the stage, options with dots (`loss.tau`), to its values: `{low: 1e-4, high: 1e-2, log: true}`, or a
    list to choose from."""
    metric: str = Field(min_length=1)
    """Metric of the evaluation that chooses, as in its table: `mean_return`, `accuracy`."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Whether the highest or the lowest value is the best."""
    trials: int = Field(default=20, ge=1, le=MAX_TRIALS)
    """Most trials; `by_hand` and `pbt` may end before."""
    max_environment_steps: int | None = Field(default=None, ge=1)
    """Most environment steps of all trials together, with every seed: a trial that would take more is not begun."""
    seeds: list[Annotated[int, Field(ge=0)]] = []
    """Seeds that every trial and the baseline are trained with, whose mean value counts; none: the seed of `train`."""
    test_seeds: list[Annotated[int, Field(ge=0)]] = []
    """Other seeds that the chosen settings and the baseline are trained with after the choice; their means are the
    result, and the first gives the model."""
    sampler: SamplerUse = SamplerUse(use="tpe")
    """Picks the settings of a trial."""
    trained: SkipJsonSchema[Trained | None] = None
    """The stage that `train` names; filled in when the recipe is read."""
    evaluated: SkipJsonSchema[Evaluated | None] = None
    """The stage that `evaluate` names, for the model of `train` alone; filled in when the recipe is read."""

    @model_validator(mode="after")
    def require_other_seeds(self) -> Self:
        """Require different seeds, and none that both chooses and tests."""
        for key in ("seeds", "test_seeds"):
            if len(set(getattr(self, key))) < len(getattr(self, key)):
                raise ValueError(f"`{key}` lists a seed twice")
        if both := sorted(set(self.seeds) & set(self.test_seeds)):
            numbers = ", ".join(map(str, both))
            raise ValueError(f"`test_seeds` has seeds that choose, too: {numbers}; test with others than `seeds`")
        return self

    @model_validator(mode="after")
    def require_choices(self) -> Self:
        """Require two values of every list."""
        for path, values in self.space.items():
            if isinstance(values, list) and len(set(map(repr, values))) < 2:
                raise ValueError(f"`space.{path}` lists fewer than two values")
            if isinstance(values, list) and any(isinstance(v, float) and not math.isfinite(v) for v in values):
                raise ValueError(f"`space.{path}` lists a number that is not finite")
        return self

    def optional_code(self, asked: Collection[str] = ()) -> dict[str, tuple[str, str]]:
        """Return the tasks of the two stages, and their own optional parts."""
        code: dict[str, tuple[str, str]] = {}
        for name, part in (("trained", self.trained), ("evaluated", self.evaluated)):
            if part is not None:
                code[name] = (f"tasks.{part.kind}", "run")
                code |= {f"{name}.{inner}": where for inner, where in part.optional_code(asked).items()}
        if isinstance(self.evaluated, Evaluate) and any(task.use == SCORED_TASKS for task in self.evaluated.tasks):
            code["refuse_test_splits"] = ("tasks.search_refusals", "refuse_test_splits")
        return code

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the best model, and the settings and results of all trials."""
        return {"model": types.get("train", "policy"), "trials": "directory"}
