"""kind: rl — reinforcement learning with a composable algorithm."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.auxiliary import Auxiliary
from schemas.base import Schema
from schemas.critic import Critic
from schemas.endpoint import Capped
from schemas.number_schedules import Number
from schemas.references import AgentRef, PolicyRef, PromptsRef
from schemas.stages.base import BaseStage
from schemas.training import LoRA, Training, Watch
from schemas.use import (
    AdvantageShapingUse,
    AdvantageUse,
    ControllerUse,
    EngineUse,
    EnvUse,
    ExtraSamplesUse,
    FilterGroupsUse,
    ImportanceCorrectionUse,
    LogitsProcessorUse,
    LossAggregationUse,
    LossTermUse,
    PolicyLossUse,
    PromptSamplerUse,
    RatioUse,
    ResampleUse,
    RewardShapingUse,
    RewardUse,
    RolloutUse,
    TokenMaskUse,
)

OPTIONAL_CODE = {
    "agent_environment": ("learning.agents.acting", "load_env"),
    "agent_rows": ("learning.agents.acting", "load_rows"),
    "environment": ("learning.environments.making", "wrap_in_environment"),
    "auxiliary_models": ("learning.rl.auxiliary_models", "AuxiliaryModels"),
    "routing_replay": ("learning.batch.routing_replay", "add_expert_column"),
}
"""Parts that only some stages use; the key of a step holds the code of those that it uses."""


class AdvantageStream(Schema):
    """A further advantage pipeline over one reward; its advantages are added to those of the stage."""

    of: str = Field(min_length=1)
    """Name of the reward, or of an auxiliary model whose values at the tokens are then the start."""
    coef: Number = 1.0
    """Factor of its advantages; a number schedule is allowed."""
    advantage: list[AdvantageUse] = Field(min_length=1)
    """Operations from the raw scores to advantages, in order."""


class ReferenceSpec(Schema):
    """A policy whose log-probabilities parts of the loss may ask for."""

    model: PolicyRef | None = None
    """Null: the starting policy."""
    sync_steps: int | None = Field(default=None, ge=1)
    """Iterations between updates from the trained policy; null: never."""
    mixup_alpha: float = Field(default=1.0, gt=0, le=1)
    """Share of the trained policy's weights in an update; 1 is a copy."""


class Rl(Capped, Training, LoRA, BaseStage):
    """Sample groups of completions, score them, and follow the policy gradient.

    The algorithm is a composition of slots, from `prompt_sampler` to `controllers`; `algorithm: grpo` fills them from
    `recipes/algorithms/grpo.yaml`; a slot given here replaces the preset's.
    """

    can: ClassVar = frozenset({"train", "rollout", "reward", "reference"})
    data_port: ClassVar = "prompts"
    learning_approach: ClassVar = "reinforcement-learning"

    kind: Literal["rl"]
    model: PolicyRef
    """Policy to start from; also the reference of KL terms unless `reference` is given."""
    prompts: PromptsRef
    """Problems to sample completions for."""
    algorithm: str | None = None
    """Name of the preset that filled the slots below."""
    prompt_sampler: PromptSamplerUse = PromptSamplerUse(use="uniform")
    """Chooses the prompts of an iteration, and how many completions each one gets."""
    rollout: RolloutUse = RolloutUse(use="synchronous")
    """How completions are sampled: all at once, in windows, or beside the trainer."""
    logits_processors: list[LogitsProcessorUse] = []
    """Changes to the distribution that tokens are sampled from, in order; the loss does not see them."""
    rewards: list[RewardUse] = Field(min_length=1)
    """Verifiable and learned rewards; their weighted sum is the reward."""
    resample: list[ResampleUse] = []
    """What is dropped, and what is sampled further, once scores are known."""
    max_sampling_rounds: int = Field(default=8, ge=1)
    """Rounds of sampling in an iteration, the first included; what `resample` asks for after them is not sampled."""
    extra_samples: list[ExtraSamplesUse] = []
    """Completions added from elsewhere: stored ones, or an expert's."""
    filter_groups: FilterGroupsUse | None = None
    """Which groups are trained on, judged by raw scores; null trains on all."""
    reward_shaping: list[RewardShapingUse] = []
    """Changes to the reward of every completion, in order."""
    advantage: list[AdvantageUse]
    """Operations from rewards to advantages, in order; may be empty where `advantage_streams` is given."""
    advantage_streams: list[AdvantageStream] = []
    """Further advantage pipelines, each over a single reward."""
    advantage_shaping: list[AdvantageShapingUse] = []
    """Changes to the advantages of tokens, in order."""
    ratio: RatioUse
    """Log-ratio of the trained policy to the sampling policy."""
    importance_correction: list[ImportanceCorrectionUse] = []
    """Factors for samples of another policy than the one whose ratio is clipped."""
    token_mask: list[TokenMaskUse] = []
    """Which tokens the policy loss covers: those that every entry keeps."""
    policy_loss: PolicyLossUse
    """Per-token loss."""
    loss_aggregation: LossAggregationUse
    """Weight of each token, over the global batch."""
    loss_terms: list[LossTermUse] = []
    """Further terms of the loss: KL, entropy, cross-entropy."""
    controllers: dict[str, ControllerUse] = {}
    """Numbers that are adjusted during training; anywhere a number stands, write `{controller: name}`."""
    critic: Critic | None = None
    """A value function trained with the policy, for `gae` and `value_difference`."""
    auxiliary_models: dict[str, Auxiliary] = {}
    """Further networks trained with the policy: `progress` gives the column `progress_T`."""
    reference: PolicyRef | None = None
    """Reference policy of KL terms; null is the starting model."""
    references: dict[str, ReferenceSpec] = {}
    """Further references by name: `prev` gives the column `lp_prev_T`."""
    watch: list[Watch] = []
    """Bounds that metrics of the curves must keep to."""
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
    """Leave completions that hit the length limit out of the loss, and out of its denominator unless
    `loss_aggregation` counts them."""
    max_steps: int = Field(ge=1)
    """Iterations of sample, score, update."""
    max_sampled_tokens: int | None = Field(default=None, ge=1)
    """Ends the stage once so many tokens were sampled, which makes algorithms comparable; null: max_steps alone."""
    eval_prompts: PromptsRef | None = None
    """Held-out problems, whose mean reward is the metric `eval_reward`; needed by a watch on `reward_gap`."""
    eval_steps: int = Field(default=20, ge=1)
    """Iterations between evaluations on the held-out problems."""
    log_trajectories: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups whose trajectories are kept as Parquet."""

    @property
    def optional_code(self) -> dict[str, tuple[str, str]]:
        """Return the module and the name of what each optional part that this stage uses runs."""
        uses = {
            "agent_environment": self.agent is not None,
            "agent_rows": self.agent is not None,
            "environment": self.env is not None or self.agent is not None,
            "auxiliary_models": self.critic is not None or bool(self.auxiliary_models),
            "routing_replay": self.routing_replay,
        }
        return {part: code for part, code in OPTIONAL_CODE.items() if uses[part]}

    @model_validator(mode="after")
    def whole_groups(self) -> Self:
        """Require complete groups, and at least one group per mini-batch."""
        if self.generation_batch_size % self.num_generations:
            raise ValueError("generation_batch_size must be a multiple of num_generations: groups are sampled whole")
        if self.generation_batch_size // self.num_generations < self.num_mini_batches:
            raise ValueError("num_mini_batches exceeds the number of groups; lower it or raise generation_batch_size")
        return self

    @model_validator(mode="after")
    def one_environment(self) -> Self:
        """Refuse `env` with `agent`, which has its own environment."""
        if self.agent is not None and self.env is not None:
            raise ValueError("give `agent`, whose environment it is then, or `env`, not both")
        return self

    @model_validator(mode="after")
    def some_advantage(self) -> Self:
        """Require a path from rewards to the loss."""
        if not self.advantage and not self.advantage_streams:
            raise ValueError(
                "`advantage` is empty: name the operations from rewards to advantages, or give `advantage_streams`"
            )
        return self

    @model_validator(mode="after")
    def no_dropout(self) -> Self:
        """Require the training policy to equal the sampling policy."""
        if self.use_peft and self.lora_dropout:
            raise ValueError("lora_dropout: dropout makes training and sampling policies differ; leave it at 0")
        return self

    @model_validator(mode="after")
    def replayed_once(self) -> Self:
        """Refuse routing replay with gradient checkpointing: a recomputed block chooses its experts again."""
        if self.routing_replay and self.gradient_checkpointing:
            raise ValueError(
                "routing_replay: gradient_checkpointing recomputes blocks, which choose their experts again; "
                "leave out one of the two"
            )
        return self

    @model_validator(mode="after")
    def watched_is_measured(self) -> Self:
        """Require held-out problems for a watch on their metrics."""
        if self.eval_prompts is None and any(w.metric.startswith(("eval_", "reward_gap")) for w in self.watch):
            raise ValueError("`watch` names a metric of held-out problems: give `eval_prompts`")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the trained policy, the trajectories, and the published critic and auxiliary models, with types."""
        published = {"value_model": "value_model"} if self.critic is not None and self.critic.publish else {}
        published |= {model.type: model.type for model in self.auxiliary_models.values() if model.publish}
        return {"model": "adapter" if self.use_peft else "policy", "trajectories": "trajectories", **published}
