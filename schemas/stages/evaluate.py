"""kind: evaluate — accuracy on held-out problems, with intervals, comparisons and gates."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.endpoint import Capped
from schemas.evaluation_slots import MetricUse, SolverUse, WeightDiffUse
from schemas.gates import Gate
from schemas.references import AgentRef, PolicyRef, PromptsRef
from schemas.stages.base import BaseStage
from schemas.use import EngineUse, EnvUse, ProblemsUse, RewardUse


class Evaluate(Capped, BaseStage):
    """Evaluate models on the same held-out problems; every number comes with its interval."""

    can: ClassVar = frozenset({"rollout", "reward"})

    kind: Literal["evaluate"]
    model: PolicyRef | None = None
    """One model; or give `models`."""
    models: dict[str, PolicyRef] = {}
    """Models of one table, in order: name to reference."""
    tasks: list[ProblemsUse] = []
    """Generators of held-out problems."""
    prompts: PromptsRef | None = None
    """Held-out problems made by a stage, instead of or beside `tasks`."""
    rewards: list[RewardUse] = Field(default=[RewardUse(use="answers.exact")], min_length=1)
    """Score of a completion; correct means the weighted sum reaches `threshold`."""
    threshold: float = 1.0
    """Score from which a completion counts as correct."""
    selector: RewardUse | None = None
    """Best of n: of a problem's samples only the one that this scores highest is the model's answer; null: all are."""
    metrics: list[MetricUse] = Field(default=[MetricUse(use="accuracy")], min_length=1)
    """Numbers of the table."""
    solver: SolverUse | None = None
    """How a model is asked: in parts, with examples; null gives it the problem as it is."""
    weight_diff: list[WeightDiffUse] = []
    """How far the weights of each model are from those of the first, tensor by tensor."""
    num_generations: int = Field(default=1, ge=1)
    """Samples per problem."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    max_completion_length: int = Field(default=64, ge=1)
    """Tokens per completion."""
    engine: EngineUse = EngineUse(use="torch")
    """Turns prompts into tokens."""
    agent: AgentRef | None = None
    """Agent as which every model acts: its environment, and its context before every problem; or give `env`."""
    agents: dict[str, AgentRef] = {}
    """Agents of single models, by the names in `models` and `against`; the others act as `agent`."""
    env: EnvUse | None = None
    """Answers the model's turns, so that a sample is an episode of several; null: it is one turn."""
    limit: int | None = Field(default=None, ge=1)
    """Problems per task."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Level of all intervals."""
    num_bootstrap: int = Field(default=10000, ge=100)
    """Resamples of the paired bootstrap."""
    gate: list[Gate] = []
    """Conditions on the results; one may be written without the list."""
    against: dict[str, PolicyRef] = {}
    """Models that gates compare with beside those of `models`: name to reference. Written by `gate: {against: ...}`."""

    @model_validator(mode="after")
    def consistent(self) -> Self:
        """One form of the models, at least one set of problems, sampling where several samples are asked for."""
        if (self.model is None) == (not self.models):
            raise ValueError("give exactly one of `model` and `models`")
        if self.env is not None and (self.agent is not None or self.agents):
            raise ValueError("give `agent` (or `agents`), whose environment it is then, or `env`, not both")
        if strange := sorted(self.agents.keys() - self.models.keys() - self.against.keys()):
            known = ", ".join(self.models) or "none"
            raise ValueError(f"`agents`: no model is called `{strange[0]}`; there are {known}")
        if not self.tasks and self.prompts is None:
            raise ValueError("give `tasks` (generators of held-out problems) or `prompts`")
        if self.selector is not None and self.num_generations == 1:
            raise ValueError("`selector` chooses among several samples; raise `num_generations`")
        if self.num_generations > 1 and self.temperature == 0:
            raise ValueError("several samples at temperature 0 are all the same; set `temperature`")
        if self.weight_diff and len(self.models) < 2:
            raise ValueError("`weight_diff` compares each model with the first: give two or more in `models`")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """The report: table, comparisons, gates, every sample."""
        return {"report": "eval_report"}
