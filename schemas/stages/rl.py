"""kind: rl — reinforcement learning with a composable algorithm."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.auxiliary import Auxiliary
from schemas.base import Schema
from schemas.critic import Critic
from schemas.endpoint import Capped
from schemas.references import AgentRef, PolicyRef, PromptsRef
from schemas.schedules import Number
from schemas.stages.base import BaseStage
from schemas.training import LoRA, Training
from schemas.use import (
    AdvantageUse,
    ComponentUse,
    ControlUse,
    CorrectUse,
    DriveUse,
    EngineUse,
    EnvUse,
    FollowUpUse,
    GroupFilterUse,
    ModulateUse,
    PlanUse,
    ProcessUse,
    RatioUse,
    RewardUse,
    SelectUse,
    ShapeUse,
    SourceUse,
    SurrogateUse,
    WeighUse,
)
from schemas.watch import Watch

OPTIONAL_CODE = {
    "agent_environment": ("learning.agents.acting", "env_at"),
    "agent_rows": ("learning.agents.acting", "rows_at"),
    "environment": ("learning.environments.making", "in_environment"),
    "auxiliary_models": ("learning.rl.auxiliary_models", "AuxiliaryModels"),
    "routing_replay": ("learning.batch.routing_replay", "with_experts"),
}
"""Parts that only some stages use; the key of a step holds the code of those that it uses."""


class BranchUse(Schema):
    """A further stream of reward, with a pipeline of its own; its advantages are added."""

    of: str = Field(min_length=1)
    """Name of the reward, or of an auxiliary, whose values at tokens are then the start."""
    coef: Number = 1.0
    """Factor of its advantages; a schedule is allowed."""
    advantage: list[AdvantageUse] = Field(min_length=1)
    """Operations from the raw scores to advantages, in order."""


class ReferenceSpec(Schema):
    """A policy whose log-probabilities parts of the loss may ask for."""

    model: PolicyRef | None = None
    """Null: the starting policy."""
    every: int | None = Field(default=None, ge=1)
    """Iterations between refreshes from the policy that is trained; null: never."""
    mix: float = Field(default=1.0, gt=0, le=1)
    """Share of the trained policy's weights in a refresh; 1 is a copy."""


class Rl(Capped, Training, LoRA, BaseStage):
    """Sample groups of completions, score them, and follow the policy gradient.

    The algorithm is a composition of slots, from `plan` to `control`; `algorithm: grpo` fills them from
    `recipes/algorithms/grpo.yaml`; a slot given here replaces the preset's.
    """

    can: ClassVar = frozenset({"train", "rollout", "reward", "reference"})

    kind: Literal["rl"]
    model: PolicyRef
    """Policy to start from; also the reference of KL terms unless `reference` is given."""
    prompts: PromptsRef
    """Problems to sample completions for."""
    algorithm: str | None = None
    """Name of the preset that filled the slots below."""
    plan: PlanUse = PlanUse(use="uniform")
    """What an iteration samples."""
    drive: DriveUse = DriveUse(use="whole")
    """How completions come about: at once, in windows, more than needed."""
    process: list[ProcessUse] = []
    """Changes to the distribution that tokens are sampled from, in order; training does not know of them."""
    rewards: list[RewardUse] = Field(min_length=1)
    """Verifiable and learned rewards; their weighted sum is the reward."""
    follow_up: list[FollowUpUse] = []
    """What is dropped, and what is sampled further, once scores are known."""
    max_rounds: int = Field(default=8, ge=1)
    """Rounds of sampling in an iteration; what follow-ups still ask for then is not sampled."""
    source: list[SourceUse] = []
    """Completions that are added without being sampled now: stored ones, an expert's."""
    filter: GroupFilterUse | None = None
    """Which groups are trained on, judged by raw scores; null trains on all."""
    shape: list[ShapeUse] = []
    """Changes to the reward of every completion, in order."""
    advantage: list[AdvantageUse]
    """Operations from rewards to advantages, in order; empty where `branches` say everything."""
    branches: list[BranchUse] = []
    """Further streams: single rewards with pipelines of their own."""
    modulate: list[ModulateUse] = []
    """Changes to the advantages of tokens, in order."""
    ratio: RatioUse
    """Log-ratio of the trained policy to the sampling policy."""
    correct: list[CorrectUse] = []
    """Factors for samples of another policy than the one whose ratio is clipped."""
    select: list[SelectUse] = []
    """Which tokens the surrogate is about; all must agree."""
    surrogate: SurrogateUse
    """Per-token loss."""
    weigh: WeighUse
    """Weight of each token, over the global batch."""
    components: list[ComponentUse] = []
    """Further terms of the loss: KL, entropy, cross-entropy."""
    control: dict[str, ControlUse] = {}
    """Numbers that are set anew while training; anywhere a number stands, write `{control: name}`."""
    critic: Critic | None = None
    """A value function learnt beside the policy, for `gae` and `diff`."""
    auxiliaries: dict[str, Auxiliary] = {}
    """Further networks learnt beside the policy: `progress` gives the column `progress_T`."""
    reference: PolicyRef | None = None
    """Reference policy of KL terms; null is the starting model."""
    references: dict[str, ReferenceSpec] = {}
    """Further references by name: `prev` gives the column `lp_prev_T`."""
    watch: list[Watch] = []
    """Bands that the curves must stay in."""
    engine: EngineUse = EngineUse(use="torch")
    """Turns prompts into tokens."""
    agent: AgentRef | None = None
    """Agent whose environment answers the model's turns, and whose context every problem is shown in; or give `env`."""
    env: EnvUse | None = None
    """Answers the model's turns, so that a completion is an episode of several; null: it is one turn."""
    generation_batch_size: int = Field(default=64, ge=1)
    """Completions sampled per iteration."""
    num_generations: int = Field(default=8, ge=1)
    """Completions per prompt: the group."""
    num_iterations: int = Field(default=1, ge=1)
    """Passes over each sampled batch."""
    num_mini_batches: int = Field(default=1, ge=1)
    """Optimiser steps per pass; cut at group borders. Warm-up, schedules and save_steps count iterations, not these."""
    max_tokens_per_micro_batch: int = Field(default=4096, ge=1)
    """Token budget of one forward pass; the gradient does not depend on it."""
    max_completion_length: int = Field(default=64, ge=1)
    """Tokens per completion."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; training log-probabilities use the same."""
    routing_replay: bool = False
    """For a mixture of experts: those chosen before an iteration's update are used throughout it (R2)."""
    mask_truncated_completions: bool = False
    """Leave completions that hit the length limit out of the loss (and, unless `weigh` says so, its denominator)."""
    max_steps: int = Field(ge=1)
    """Iterations of sample, score, update."""
    max_sampled_tokens: int | None = Field(default=None, ge=1)
    """Ends the stage once so many tokens were sampled, which makes algorithms comparable; null: max_steps alone."""
    eval_prompts: PromptsRef | None = None
    """Held-out problems, whose accuracy is a point of the curves; needed by a watch on `reward_gap`."""
    eval_steps: int = Field(default=20, ge=1)
    """Iterations between looks at the held-out problems."""
    log_trajectories: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups whose trajectories are kept as Parquet."""

    @property
    def optional_code(self) -> dict[str, tuple[str, str]]:
        """Return the module and the name of what each optional part that this stage uses runs."""
        uses = {
            "agent_environment": self.agent is not None,
            "agent_rows": self.agent is not None,
            "environment": self.env is not None or self.agent is not None,
            "auxiliary_models": self.critic is not None or bool(self.auxiliaries),
            "routing_replay": self.routing_replay,
        }
        return {part: code for part, code in OPTIONAL_CODE.items() if uses[part]}

    @model_validator(mode="after")
    def whole_groups(self) -> Self:
        """Sampling is by whole groups, and mini-batches are cut at group borders."""
        if self.generation_batch_size % self.num_generations:
            raise ValueError("generation_batch_size must be a multiple of num_generations: groups are sampled whole")
        if self.generation_batch_size // self.num_generations < self.num_mini_batches:
            raise ValueError("num_mini_batches exceeds the number of groups; lower it or raise generation_batch_size")
        return self

    @model_validator(mode="after")
    def one_environment(self) -> Self:
        """An agent brings its own."""
        if self.agent is not None and self.env is not None:
            raise ValueError("give `agent`, whose environment it is then, or `env`, not both")
        return self

    @model_validator(mode="after")
    def some_advantage(self) -> Self:
        """Rewards must reach the loss."""
        if not self.advantage and not self.branches:
            raise ValueError("`advantage` is empty: name the operations from rewards to advantages, or give `branches`")
        return self

    @model_validator(mode="after")
    def no_dropout(self) -> Self:
        """What is trained must be what sampled."""
        if self.use_peft and self.lora_dropout:
            raise ValueError("lora_dropout in a policy: what is trained would not be what sampled; leave it at 0")
        return self

    @model_validator(mode="after")
    def replayed_once(self) -> Self:
        """A block that is computed again routes again."""
        if self.routing_replay and self.gradient_checkpointing:
            raise ValueError("routing_replay: with gradient_checkpointing blocks route anew; leave one of them out")
        return self

    @model_validator(mode="after")
    def watched_is_measured(self) -> Self:
        """A watch on held-out problems needs some."""
        if self.eval_prompts is None and any(w.metric.startswith(("eval_", "reward_gap")) for w in self.watch):
            raise ValueError("`watch` looks at held-out problems: give `eval_prompts`")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """The trained policy, what it sampled, and the networks beside it that are published."""
        beside = {"value_model": "value_model"} if self.critic is not None and self.critic.publish else {}
        beside |= {one.type: one.type for one in self.auxiliaries.values() if one.publish}
        return {"model": "adapter" if self.use_peft else "policy", "trajectories": "trajectories", **beside}
