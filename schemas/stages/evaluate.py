"""kind: evaluate — accuracy on held-out problems, with intervals, comparisons and gates."""

import operator
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.evaluation_slots import SCORED_TASKS, MetricUse, SolverUse, WeightDiffUse
from schemas.gates import Gate
from schemas.problem_sampling import ProblemSampling
from schemas.references import AgentRef, PolicyRef
from schemas.roles import MAIN, EvaluatedPolicy, Name, RoleSpec, TurnOrderUse, check_players
from schemas.stages.base import BaseStage, ReportSection, RewardTests
from schemas.use import EnvUse, LogitsProcessorUse, RewardUse


class Evaluate(ProblemSampling, RewardTests, BaseStage):
    """Evaluate models on the same held-out problems; every number comes with its interval."""

    can: ClassVar = frozenset({"rollout", "reward"})
    fan_port: ClassVar = "models"
    single_keys: ClassVar = frozenset({"gate"})
    shares_tokens: ClassVar = False
    scores_models: ClassVar = True
    report_section: ClassVar = ReportSection(detail="table", is_result=True)

    kind: Literal["evaluate"]
    model: PolicyRef | None = None
    """The model to evaluate; for several, give `models` instead."""
    models: dict[str, PolicyRef] = {}
    """Models to evaluate in one table, in this order: name to reference."""
    selector: RewardUse | None = None
    """Best of n: only the sample that this function scores highest counts as the answer; null: all samples count."""
    metrics: list[MetricUse] = Field(default=[MetricUse(use="accuracy")], min_length=1)
    """Metrics in the table."""
    solver: SolverUse | None = None
    """How a model is prompted, such as in parts or with examples; null: with the problem alone."""
    solvers: dict[str, SolverUse] = {}
    """Solvers for single models, by their names in `models` and `against`; all other models use `solver`."""
    envs: dict[str, EnvUse] = {}
    """Environments for single models, by their names in `models` and `against`; all other models use `env`."""
    logits_processors: dict[str, list[LogitsProcessorUse]] = Field(default={}, exclude_if=operator.not_)
    """Changes to the distribution that single models are sampled from, by their names in `models` and `against`."""
    weight_diff: list[WeightDiffUse] = []
    """Distances between the weights of each model and those of the first, tensor by tensor."""
    agent: AgentRef | None = None
    """Agent for all models: its environment answers their turns, its context precedes every problem; or give `env`."""
    agents: dict[str, AgentRef] = {}
    """Agents for single models, by their names in `models` and `against`; all other models use `agent`."""
    roles: dict[Name, RoleSpec] = Field(default={}, exclude_if=operator.not_)
    """Roles by name: a sample is then an episode that they share, and each model plays those of the policy `model`."""
    policies: dict[Name, EvaluatedPolicy] = Field(default={}, exclude_if=operator.not_)
    """Further policies that play roles, by name."""
    turn_order: TurnOrderUse | None = Field(default=None, exclude_if=operator.not_)
    """Decides which role speaks next, and what it is shown; required with `roles`."""
    gate: list[Gate] = []
    """Conditions on the results; a single one needs no list."""
    against: dict[str, PolicyRef] = {}
    """Further models that gates compare with: name to reference. Filled from `gate: {against: ...}`."""

    @model_validator(mode="after")
    def check_consistency(self) -> Self:
        """Check that the keys for models, agents, solvers, problems and samples agree with each other."""
        if (self.model is None) == (not self.models):
            raise ValueError("give exactly one of `model` and `models`")
        if self.env is not None and (self.agent is not None or self.agents):
            raise ValueError("give either `agent` (or `agents`), which has its own environment, or `env`")
        if self.envs and self.agent is not None:
            raise ValueError("give either `agent`, which has its own environment, or `envs`")
        if both := sorted(self.envs.keys() & self.agents.keys()):
            raise ValueError(f"`{both[0]}` is in `envs` and in `agents`; an agent has its own environment")
        processed = self.logits_processors
        if processed and self.engine.use != "torch":
            raise ValueError(f"`logits_processors` need `engine: torch`, not {self.engine.use}")
        if processed and any(metric.use == "answer_logprob" for metric in self.metrics):
            raise ValueError("`answer_logprob` is of the model's own probabilities, which `logits_processors` change")
        named_keys = {"agents": self.agents, "solvers": self.solvers, "envs": self.envs, "logits_processors": processed}
        for key, named in named_keys.items():
            if strange := sorted(named.keys() - self.models.keys() - self.against.keys()):
                models = ", ".join(self.models) or "none"
                raise ValueError(f"`{key}`: no model is called `{strange[0]}`; models: {models}")
        if not self.tasks and self.prompts is None:
            raise ValueError("give `tasks` (generators of held-out problems) or `prompts`")
        if self.selector is not None and self.num_generations == 1:
            raise ValueError("`selector` chooses among several samples; raise `num_generations`")
        if self.num_generations > 1 and self.temperature == 0:
            raise ValueError("samples at temperature 0 are all equal; set `temperature`")
        if self.weight_diff and len(self.models) < 2:
            raise ValueError("`weight_diff` compares each model with the first: give two or more in `models`")
        return self

    @model_validator(mode="after")
    def check_roles(self) -> Self:
        """Check that roles, policies and the turn order agree, and refuse keys that have no meaning for a team."""
        check_players(self.roles, self.policies, has_order=self.turn_order is not None)
        if not self.roles:
            return self
        if MAIN not in {spec.policy for spec in self.roles.values() if spec.script is None}:
            raise ValueError(f"roles: the evaluated models play the policy `{MAIN}`, which no role has")
        teams = [*(self.models or [MAIN]), *self.against]
        for name, policy in self.policies.items():
            if strange := sorted(policy.models.keys() - set(teams)):
                raise ValueError(f"policies: `{name}`: no model is called `{strange[0]}`; models: {', '.join(teams)}")
            missing = [] if policy.model is not None else [team for team in teams if team not in policy.models]
            if missing:
                raise ValueError(
                    f"policies: `{name}` has no model for `{missing[0]}`; give `model`, or name it in `models`"
                )
            if policy.model is not None and policy.models.keys() == set(teams):
                raise ValueError(
                    f"policies: `{name}`: every team has a policy of its own, so that `model` has no effect"
                )
        given = {
            "env": self.env or self.envs,
            "agent": self.agent or self.agents,
            "solver": self.solver or self.solvers,
            "selector": self.selector,
            "logits_processors": self.logits_processors,
            f"tasks: {SCORED_TASKS}": any(task.use == SCORED_TASKS for task in self.tasks),
            f"engine: {self.engine.use}": self.engine.use != "torch",
            "resources.rollout": self.resources.rollout,
            "resources.reward": self.resources.reward,
        }
        if names := [name for name, value in given.items() if value]:
            raise ValueError(
                f"`{names[0]}` does not work with `roles`, whose policies are sampled together in this process; a role "
                "may have an `env` of its own"
            )
        return self

    @property
    def task_module(self) -> str:
        """Module of `tasks` that runs the stage."""
        return "evaluate_roles" if self.roles else self.kind

    @model_validator(mode="after")
    def check_scored_tasks(self) -> Self:
        """Refuse keys that cannot apply to tasks which a library prompts and scores."""
        if all(task.use != SCORED_TASKS for task in self.tasks):
            return self
        given = {
            "selector": self.selector,
            "logits_processors": self.logits_processors,
            "solver": self.solver or self.solvers,
            "env": self.env or self.envs,
            "agent": self.agent or self.agents,
            "temperature": self.temperature,
            "num_generations": self.num_generations > 1,
        }
        if names := [name for name, value in given.items() if value]:
            raise ValueError(
                f"`{names[0]}` does not apply to `{SCORED_TASKS}`, whose tasks are prompted and sampled as lm-eval "
                "defines them; evaluate on them in a stage of their own"
            )
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the report, with table, comparisons, gates and every sample."""
        return {"report": "eval_report"}
