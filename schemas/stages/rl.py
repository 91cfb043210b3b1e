"""kind: rl — reinforcement learning with a composable algorithm."""

import operator
from collections.abc import Collection, Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.auxiliary import Auxiliary
from schemas.base import Schema
from schemas.chat import Chat
from schemas.critic import Critic
from schemas.endpoint import Capped
from schemas.kept_tokens import KeptTokens
from schemas.number_schedules import Controlled, Number, list_values
from schemas.references import AgentRef, PolicyRef, PromptsRef
from schemas.roles import MAIN, Name, RoleSpec, TeamPolicy, TurnOrderUse, check_players
from schemas.stages.base import BaseStage, RewardTests
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
    "answer_gains": ("learning.rl.answer_gains", "add_gains"),
    "information_values": ("learning.rl.information_values", "add_information_values"),
    "tag_spans": ("learning.rl.tag_spans", "add_tags"),
    "routing_replay": ("learning.batch.routing_replay", "add_expert_column"),
    "references": ("learning.rl.references", "References"),
}
"""Optional parts: name to module and function. The key of a step covers the code of the parts that it uses."""


class AdvantageStream(Schema):
    """A further advantage pipeline over one reward; its advantages are added to those of the stage."""

    of: str = Field(min_length=1)
    """Name of a reward, or of an auxiliary model, whose values at the tokens are then the input of the pipeline."""
    coef: Number = 1.0
    """Factor of the stream's advantages; may be a number schedule."""
    advantage: list[AdvantageUse] = Field(min_length=1)
    """Operations from the raw scores to advantages, in order."""


class ReferenceSpec(Schema):
    """A policy whose log-probabilities are available to the parts of the loss."""

    model: PolicyRef | None = None
    """The policy; null: the starting policy."""
    sync_steps: int | None = Field(default=None, ge=1)
    """Iterations between updates from the trained policy; null: no updates."""
    mixup_alpha: float = Field(default=1.0, gt=0, le=1)
    """Share of the trained policy's weights in an update; 1 copies them."""


class Rl(Capped, Training, LoRA, Chat, RewardTests, BaseStage):
    """Sample groups of completions, score them, and update the policy by the policy gradient.

    The algorithm is a composition of slots, from `prompt_sampler` to `controllers`; `algorithm: grpo` fills them from
    `recipes/algorithms/grpo.yaml`; a slot given here replaces the preset's.
    """

    can: ClassVar = frozenset({"train", "rollout", "reward", "reference"})
    data_port: ClassVar = "prompts"
    learning_approach: ClassVar = "reinforcement-learning"
    training_signal: ClassVar = "rewards"

    kind: Literal["rl"]
    model: PolicyRef
    """Policy to train; its initial weights are also the reference of KL terms unless `reference` is given."""
    prompts: PromptsRef
    """Prompts to sample completions for."""
    algorithm: str | None = None
    """Name of the preset that filled the slots below."""
    prompt_sampler: PromptSamplerUse = PromptSamplerUse(use="uniform")
    """Chooses the prompts of an iteration, and how many completions each one gets."""
    rollout: RolloutUse = RolloutUse(use="synchronous")
    """How completions are sampled: all at once, in windows, or while training goes on."""
    logits_processors: list[LogitsProcessorUse] = []
    """Changes to the distribution that tokens are sampled from, in order; the loss does not see them."""
    rewards: list[RewardUse] = Field(min_length=1)
    """Verifiable and learned rewards; their weighted sum is the reward."""
    resample: list[ResampleUse] = []
    """Decides, after scoring, which completions are dropped and which are sampled in addition."""
    max_sampling_rounds: int = Field(default=8, ge=1)
    """Most sampling rounds per iteration, the first included; later requests of `resample` are ignored."""
    extra_samples: list[ExtraSamplesUse] = []
    """Sources of completions that are not sampled in this iteration: replay, or an expert."""
    filter_groups: FilterGroupsUse | None = None
    """Selects the groups that are trained on, by their raw scores; null: all groups."""
    reward_shaping: list[RewardShapingUse] = []
    """Changes to the reward of every completion, in order."""
    advantage: list[AdvantageUse]
    """Operations from rewards to advantages, in order; may be empty if `advantage_streams` is given."""
    advantage_streams: list[AdvantageStream] = []
    """Further advantage pipelines, each over one reward; their advantages are added."""
    advantage_shaping: list[AdvantageShapingUse] = []
    """Changes to the advantages of tokens, in order."""
    ratio: RatioUse
    """Log-ratio of the trained policy to the sampling policy."""
    importance_correction: list[ImportanceCorrectionUse] = []
    """Factors that correct for samples from a policy other than the one whose ratio is clipped."""
    token_mask: list[TokenMaskUse] = []
    """Selects the tokens of the policy loss: those that every entry keeps."""
    policy_loss: PolicyLossUse
    """Policy loss of a token."""
    loss_aggregation: LossAggregationUse
    """Sets the weight of each token over the global batch."""
    loss_terms: list[LossTermUse] = []
    """Further terms of the loss: KL, entropy, cross-entropy."""
    controllers: dict[str, ControllerUse] = {}
    """Numbers that are adjusted during training; a number option refers to one as `{controller: name}`."""
    critic: Critic | None = None
    """A value function trained with the policy, for `gae` and `value_difference`."""
    auxiliary_models: dict[str, Auxiliary] = {}
    """Further networks trained with the policy; the values of a network `progress` are the column `progress_T`."""
    reference: PolicyRef | None = None
    """Reference policy of KL terms; null: the starting model."""
    references: dict[str, ReferenceSpec] = {}
    """Further reference policies; the log-probabilities of a reference `prev` are the column `lp_prev_T`."""
    watch: list[Watch] = []
    """Bounds on metrics, and what happens when a metric leaves them."""
    engine: EngineUse = EngineUse(use="torch")
    """Engine that samples completions."""
    agent: AgentRef | None = None
    """Agent whose environment answers the model's turns and whose context is part of every prompt; or give `env`."""
    env: EnvUse | None = None
    """Environment that answers the model's turns, so that a completion is an episode; null: it is a single turn."""
    roles: dict[Name, RoleSpec] = Field(default={}, exclude_if=operator.not_)
    """Roles of an episode that several speakers share; a completion is then an episode, with a sample for each role.
    Empty: the model speaks alone."""
    policies: dict[Name, TeamPolicy] = Field(default={}, exclude_if=operator.not_)
    """Further policies that play roles, by name; those that are trained are outputs of the stage under their names."""
    turn_order: TurnOrderUse | None = Field(default=None, exclude_if=operator.not_)
    """Decides which role speaks next, and what it is shown; required with `roles`."""
    generation_batch_size: int = Field(default=64, ge=1)
    """Completions sampled per iteration."""
    num_generations: int = Field(default=8, ge=1)
    """Completions per prompt (the group size)."""
    num_iterations: int = Field(default=1, ge=1)
    """Passes over each sampled batch."""
    num_mini_batches: int = Field(default=1, ge=1)
    """Optimiser steps per pass; mini-batches hold whole groups. Warm-up, schedules and save_steps count iterations."""
    max_tokens_per_micro_batch: int = Field(default=4096, ge=1)
    """Most tokens per forward pass; does not change the gradient."""
    max_completion_length: int = Field(default=64, ge=1)
    """Most tokens per completion."""
    completion_limit: Number | None = None
    """Most tokens per completion in an iteration, a schedule that rises up to `max_completion_length`, such as
    `{piecewise: {0: 128, 50: 256}}`: short answers first. Losses and evaluations count with `max_completion_length`;
    null: that is the limit from the start."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; training log-probabilities are computed at the same temperature."""
    kept_tokens: KeptTokens | None = Field(default=None, exclude_if=operator.not_)
    """Tokens that completions are sampled from, by `top_k` and `top_p`; log-probabilities are those among the kept
    tokens, when sampled and in the loss, where each token's kept ones are the same. null: the whole vocabulary."""
    answer_prefix: str = ""
    """Text before the row's answer where its probability is measured after each turn, for `gain_T` and `shapley_T`."""
    routing_replay: bool = False
    """For a mixture of experts: whether all passes of an iteration use the experts chosen before its update (R2)."""
    mask_truncated_completions: bool = False
    """Whether to exclude completions that hit the length limit from the loss, and from its denominator unless
    `loss_aggregation` counts them."""
    max_steps: int = Field(ge=1)
    """Number of iterations; each samples, scores and updates."""
    max_sampled_tokens: int | None = Field(default=None, ge=1)
    """Sampled tokens after which the stage ends, to compare algorithms at equal cost; null: only max_steps ends it."""
    eval_prompts: PromptsRef | None = None
    """Held-out prompts; their mean reward is the metric `eval_reward`. Required by a watch on `reward_gap`."""
    eval_steps: int = Field(default=20, ge=1)
    """Iterations between evaluations on `eval_prompts`."""
    eval_temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature of these evaluations, one completion per prompt; 0: greedy; null: `temperature`."""
    metric_for_best_model: str = "eval_reward"
    """Metric by which evaluations are compared: `eval_reward`, `eval_reward/NAME` of one of several rewards, or
    `eval_completion_length`."""
    greater_is_better: bool = True
    """Whether a higher value of that metric is better."""
    early_stopping_patience: int | None = Field(default=None, ge=1)
    """Evaluations in a row without a better `metric_for_best_model` after which training ends; null: it takes all its
    steps."""
    load_best_model_at_end: bool = False
    """Whether the output has the weights of the evaluation with the best `metric_for_best_model` instead of the last
    ones."""
    log_trajectories: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups whose trajectories are stored as Parquet."""

    def optional_code(self, asked: Collection[str] = ()) -> dict[str, tuple[str, str]]:
        """Add the code of each optional part that this stage uses."""
        uses = {
            "agent_environment": self.agent is not None,
            "agent_rows": self.agent is not None,
            "environment": self.env is not None or self.agent is not None,
            "auxiliary_models": self.critic is not None or bool(self.auxiliary_models),
            "answer_gains": "gain_T" in asked,
            "information_values": "shapley_T" in asked,
            "tag_spans": "tag_T" in asked,
            "routing_replay": self.routing_replay,
            "references": any(f"lp_{name}_T" in asked for name in ("ref", *self.references)),
        }
        return super().optional_code(asked) | {part: code for part, code in OPTIONAL_CODE.items() if uses[part]}

    @model_validator(mode="after")
    def require_complete_groups(self) -> Self:
        """Require complete groups, and at least one group per mini-batch."""
        if self.generation_batch_size % self.num_generations:
            raise ValueError("generation_batch_size must be a multiple of num_generations: groups are sampled whole")
        if self.generation_batch_size // self.num_generations < self.num_mini_batches:
            raise ValueError("num_mini_batches exceeds the number of groups; lower it or raise generation_batch_size")
        return self

    @model_validator(mode="after")
    def refuse_env_with_agent(self) -> Self:
        """Refuse `env` with `agent`, which has its own environment."""
        if self.agent is not None and self.env is not None:
            raise ValueError("give either `agent`, which has its own environment, or `env`")
        return self

    @model_validator(mode="after")
    def require_advantage(self) -> Self:
        """Require `advantage` or `advantage_streams`; without both, rewards do not reach the loss."""
        if not self.advantage and not self.advantage_streams:
            raise ValueError(
                "`advantage` is empty: name the operations from rewards to advantages, or give `advantage_streams`"
            )
        return self

    @model_validator(mode="after")
    def refuse_lora_dropout(self) -> Self:
        """Refuse LoRA dropout, which makes the training policy differ from the sampling policy."""
        if self.use_peft and self.lora_dropout:
            raise ValueError("lora_dropout: dropout makes training and sampling policies differ; leave it at 0")
        return self

    @model_validator(mode="after")
    def refuse_replay_with_recomputation(self) -> Self:
        """Refuse routing replay with gradient checkpointing, which recomputes the choice of experts."""
        if self.routing_replay and self.gradient_checkpointing:
            raise ValueError(
                "routing_replay: gradient_checkpointing recomputes blocks, which choose their experts again; "
                "remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def require_eval_prompts(self) -> Self:
        """Require `eval_prompts` for a watch on metrics of held-out prompts."""
        if self.eval_prompts is None and any(w.metric.startswith(("eval_", "reward_gap")) for w in self.watch):
            raise ValueError("`watch` names a metric of held-out problems: give `eval_prompts`")
        return self

    @model_validator(mode="after")
    def refuse_choice_without_evaluation(self) -> Self:
        """Refuse options of evaluation without held-out prompts, or if no evaluation takes place."""
        given = {
            "eval_temperature": self.eval_temperature is not None,
            "early_stopping_patience": self.early_stopping_patience is not None,
            "load_best_model_at_end": self.load_best_model_at_end,
        }
        for option in (name for name, is_given in given.items() if is_given):
            if self.eval_prompts is None:
                raise ValueError(f"{option}: no prompts are held out; give `eval_prompts`")
            if self.eval_steps > self.max_steps:
                raise ValueError(f"{option}: nothing is evaluated; lower `eval_steps` to `max_steps` or less")
        for option in ("metric_for_best_model", "greater_is_better"):
            if getattr(self, option) != Rl.model_fields[option].default and not (
                given["early_stopping_patience"] or given["load_best_model_at_end"]
            ):
                needed = "`load_best_model_at_end` or `early_stopping_patience`"
                raise ValueError(f"{option}: nothing compares evaluations; add {needed}, or leave it out")
        return self

    @model_validator(mode="after")
    def check_completion_limit(self) -> Self:
        """Check that the limit rises from at least 1 to at most `max_completion_length`."""
        limit = self.completion_limit
        if limit is None:
            return self
        if isinstance(limit, Controlled):
            raise ValueError("completion_limit: it is known before an iteration samples; give a schedule")
        if self.roles:
            raise ValueError("completion_limit: roles have `max_completion_length` of their own; remove it")
        values = list_values(limit)
        if values != sorted(values):
            raise ValueError("completion_limit: it falls, and completions that go on could be too long; let it rise")
        if values[0] < 1 or values[-1] > self.max_completion_length:
            raise ValueError(
                f"completion_limit: {values[0]:g} to {values[-1]:g} is not within 1 and `max_completion_length` "
                f"({self.max_completion_length})"
            )
        return self

    @model_validator(mode="after")
    def check_roles(self) -> Self:
        """Check that roles, policies and the turn order agree with each other."""
        reserved = ("trajectories", "value_model", "process_reward_model", MAIN)
        if clash := [name for name in self.policies if name in reserved]:
            raise ValueError(f"policies: `{clash[0]}` is the name of another output of the stage; choose another name")
        check_players(self.roles, self.policies, has_order=self.turn_order is not None)
        for role, spec in self.roles.items():
            if spec.temperature is not None and spec.trainable:
                raise ValueError(
                    f"roles: `{role}` is trained, so that it is sampled at the stage's `temperature`; remove its own"
                )
        trained = self._list_trained()
        if self.roles and MAIN not in trained:
            raise ValueError(f"roles: none trains the stage's `{MAIN}`; give one of its roles `trainable: true`")
        for name, policy in self.policies.items():
            follows = [key for key in ("sync_steps", "league") if getattr(policy, key) is not None]
            if follows and (name in trained or policy.model is not None):
                raise ValueError(
                    f"policies: `{name}` has `{follows[0]}`, so that it follows `{MAIN}`: leave out its `model`, and "
                    "give its roles `trainable: false`"
                )
            if len(follows) > 1:
                raise ValueError(f"policies: `{name}` has `sync_steps` and `league`; give one of them")
            if policy.learning_rate is not None and name not in trained:
                raise ValueError(f"policies: `{name}` is not trained; remove its `learning_rate`")
        return self

    def _list_trained(self) -> list[str]:
        """Return the names of the policies that are trained, `model` first."""
        used = {spec.policy for spec in self.roles.values() if spec.trainable and spec.script is None}
        return [name for name in (MAIN, *self.policies) if name in used]

    @property
    def task_module(self) -> str:
        """Module of `tasks` that runs the stage."""
        return "rl_roles" if self.roles else self.kind

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the trained policies, the trajectories, and the published critic and auxiliary models, with types."""
        published = {"value_model": "value_model"} if self.critic is not None and self.critic.publish else {}
        published |= {model.type: model.type for model in self.auxiliary_models.values() if model.publish}
        policy = "adapter" if self.use_peft else "policy"
        published |= {name: policy for name in self._list_trained() if name != MAIN}
        return {"model": policy, "trajectories": "trajectories", **published}
