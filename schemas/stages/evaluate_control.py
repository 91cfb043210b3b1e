"""kind: evaluate_control — control policies in the same world, from the same starts."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema
from schemas.control import ActingUse, ControlMetricUse, TaskTeacherUse, WorldUse
from schemas.gates import Gate, refuse_unusable_gates
from schemas.references import ControlPolicyRef
from schemas.stages.base import BaseStage, ReportSection


class Recording(Schema):
    """Pictures of some episodes of every policy, as GIFs in the report."""

    episodes: int = Field(default=1, ge=1)
    """Starts from which the episodes of all policies are shown: the first ones, in `env`."""
    max_frames: int = Field(default=100, ge=2, le=1000)
    """Most pictures of an episode; a longer one shows every second step, every fourth, …, and its end."""
    max_side: int = Field(default=200, ge=16, le=2000)
    """Longest side of a picture in pixels; a larger one is reduced by a whole factor."""


class EvaluateControl(BaseStage):
    """Returns of control policies without exploration, in one table with intervals, compared start by start."""

    fan_port: ClassVar = "models"
    single_keys: ClassVar = frozenset({"gate"})
    shares_tokens: ClassVar = False
    scores_models: ClassVar = True
    report_section: ClassVar = ReportSection(detail="table", is_result=True)

    kind: Literal["evaluate_control"]
    env: WorldUse
    """Environment: an id of Gymnasium, as `Pendulum-v1`, or a function that returns one."""
    other_envs: list[WorldUse] = []
    """Further environments with the same spaces: an episode from every start in each of them, too."""
    explore: bool = False
    """Draw actions from the policies' distributions; else their likeliest or best ones are taken."""
    models: dict[str, ControlPolicyRef] = Field(min_length=1)
    """Policies to evaluate in one table, in this order: name to reference."""
    policies: dict[str, ActingUse] = {}
    """Functions that act without a network, as those of `collect`, first in the table: name to function."""
    teacher: TaskTeacherUse | None = None
    """Chooses the tasks of episodes, in an environment with tasks, by the critic of each model; null: it draws them."""
    episodes: int = Field(default=20, ge=2)
    """Starts, the same for all policies; an episode of each policy from each."""
    metrics: list[ControlMetricUse] = Field(default=[ControlMetricUse(use="mean_return")], min_length=1)
    """Metrics in the table."""
    record: Recording | None = Field(default=None, exclude_if=lambda value: value is None)
    """Episodes that the report shows as GIFs, in an environment with pictures; null: none. Numbers do not change."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Confidence level of all intervals."""
    num_bootstrap: int = Field(default=10000, ge=100)
    """Number of resamples in the paired bootstrap."""
    gate: list[Gate] = []
    """Conditions on the results; a single one needs no list. `against` names one of `models`."""

    @model_validator(mode="after")
    def check_gates(self) -> Self:
        """Refuse gates against models that are not evaluated here, and repeats of what has no noise."""
        if both := sorted(self.policies.keys() & self.models.keys()):
            raise ValueError(f"`{both[0]}` is in `policies` and in `models`; give one of them another name")
        if self.record is not None and self.record.episodes > self.episodes:
            raise ValueError(
                f"record: there are {self.episodes} `episodes` of each policy, not {self.record.episodes} to be shown"
            )
        if self.teacher is not None and self.policies:
            raise ValueError(
                "`teacher` chooses tasks by the critics of models: `policies` have none; remove one of both"
            )
        refuse_unusable_gates(self.gate, [*self.policies, *self.models], "policies act without exploration")
        return self

    @property
    def task_module(self) -> str:
        """Module of `tasks` that runs the stage."""
        return "recorded_control" if self.record is not None else self.kind

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the report, with table, comparisons, gates and the return of every episode."""
        return {"report": "eval_report"}
