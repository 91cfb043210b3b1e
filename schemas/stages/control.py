"""kind: control — a policy for a world of Gymnasium, trained online, offline, or first one and then the other."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.control import (
    ControlLossUse,
    ControlTermUse,
    ExplorationUse,
    NetworkSettings,
    PriorityUse,
    RelabelUse,
    SegmentRewardUse,
    TaskTeacherUse,
    WorldUse,
)
from schemas.number_schedules import Number
from schemas.references import ControlPolicyRef, TransitionsRef
from schemas.stages.base import BaseStage


class Control(BaseStage):
    """Train a policy in an environment of Gymnasium, on data of others, or on both.

    `algorithm: sac` sets the keys of `recipes/algorithms/control/sac.yaml`; a key given here replaces the preset's.
    """

    can: ClassVar = frozenset({"actor", "policy"})
    shares_tokens: ClassVar = False
    learning_approach: ClassVar = "reinforcement-learning"
    presets: ClassVar = "recipes/algorithms/control"
    usual_preset: ClassVar = "sac"

    kind: Literal["control"]
    env: WorldUse | None = None
    """Environment: an id of Gymnasium, as `Pendulum-v1`, or a function that returns one; null: an offline stage, for
    which no world is made. Its spaces are those of `data`."""
    algorithm: str | None = None
    """Name of the preset that set the keys below."""
    loss: ControlLossUse
    """Networks and the loss that trains them."""
    loss_terms: dict[str, ControlTermUse] = {}
    """Further terms of the loss by name; the name of a term that the loss has replaces it."""
    networks: NetworkSettings = NetworkSettings()
    """Sizes of the networks; with `model` those of the model."""
    model: ControlPolicyRef | None = None
    """Policy to continue from: its actor, and every other network of the same name and shape."""
    data: list[TransitionsRef] = []
    """Transitions to train on, in addition to own steps or alone."""
    data_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of every batch that is drawn from `data`; null: all steps are equally likely."""
    environment_steps: int = Field(default=0, ge=0)
    """Steps in the environment, of all worlds together; 0: offline, on `data` alone."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps of an offline stage."""
    num_envs: int = Field(default=1, ge=1)
    """Number of worlds that are acted in at a time."""
    updates_per_step: float = Field(default=1.0, gt=0)
    """Optimiser steps per environment step, for losses that take steps of any policy."""
    learning_starts: int = Field(default=1000, ge=1)
    """Steps that are kept before the first update; without a `model` their actions are random."""
    buffer_size: int = Field(default=1_000_000, ge=1)
    """Most own steps that are kept; the oldest go first."""
    rollout_steps: int = Field(default=128, ge=1)
    """Steps of each world between updates, for losses on the newest steps alone."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Collect rollouts while the trainer learns, and drop those whose weights are more than so many rollouts old; null:
    collect and train in turns. Without workers `actor` and `policy` of `resources` these are threads."""
    num_iterations: int = Field(default=4, ge=1)
    """Passes over each rollout, for losses on the newest steps alone."""
    batch_size: int = Field(default=256, ge=1)
    """Steps per optimiser step."""
    learning_rate: float = Field(default=3e-4, gt=0, lt=1)
    """Learning rate of Adam, for all networks."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Largest norm of the gradient; null: no limit."""
    exploration: ExplorationUse | None = None
    """Changes the actions while steps are collected; null: those that the policy draws."""
    relabel: RelabelUse | None = None
    """Replaces columns of own steps before they are kept; null: they are kept as they are."""
    relabel_every: int | None = Field(default=None, ge=1)
    """Steps of each world after which `relabel` gives all kept own steps new columns; null: never."""
    segment_reward: SegmentRewardUse | None = None
    """Rewards whole pieces of a rollout's episodes, shared out evenly over their steps, for losses on the newest steps
    alone; null: the rewards of the steps."""
    teacher: TaskTeacherUse | None = None
    """Chooses the task of every episode, in an environment with tasks; null: the environment draws them."""
    priority: PriorityUse | None = None
    """Decides which kept steps a batch has; null: all are equally likely."""
    priority_correction: Number = 0.4
    """Exponent β of the weights that undo `priority` in the loss, 1 wholly; a number schedule is allowed."""
    logging_steps: int = Field(default=1000, ge=1)
    """Environment steps between points of the curves; offline: optimiser steps."""
    eval_steps: int | None = Field(default=None, ge=1)
    """Environment steps between evaluations without exploration, and one at the end; offline: optimiser steps."""
    eval_episodes: int = Field(default=5, ge=1)
    """Episodes of an evaluation."""
    save_steps: int = Field(default=5000, ge=1)
    """Environment steps between checkpoints; offline: optimiser steps."""

    @model_validator(mode="after")
    def require_steps(self) -> Self:
        """Require the length and the data of an online or an offline stage."""
        if self.environment_steps and self.max_steps:
            raise ValueError("`max_steps` counts the updates of an offline stage; with `environment_steps` remove it")
        if not self.environment_steps and not self.max_steps:
            raise ValueError("give `environment_steps`, or `data` and `max_steps` to train offline")
        if not self.environment_steps and not self.data:
            raise ValueError("an offline stage needs `data`")
        if self.env is None and (self.environment_steps or self.eval_steps):
            raise ValueError("`environment_steps` and `eval_steps` need `env`, a world to act in")
        if self.teacher is not None and not self.environment_steps:
            raise ValueError("`teacher` chooses the tasks of own episodes: give `env` and `environment_steps`")
        if self.relabel_every is not None and self.relabel is None:
            raise ValueError("`relabel_every` repeats `relabel`: give that, too")
        if self.data_share is not None and not (self.environment_steps and self.data):
            raise ValueError("`data_share` needs `data` and `environment_steps`")
        if self.learning_starts > max(self.environment_steps, 1) and self.environment_steps:
            raise ValueError("`learning_starts` is more than `environment_steps`: nothing would be trained")
        return self

    @model_validator(mode="after")
    def refuse_idle_workers(self) -> Self:
        """Refuse workers without each other or without work, and what they cannot do."""
        actors, policies = self.resources.actor, self.resources.policy
        if (actors is None) != (policies is None):
            raise ValueError("resources: `actor` and `policy` go together: actors step worlds, the policy acts in them")
        if policies is not None and policies.workers > 1:
            raise ValueError("resources: one policy worker acts for all actors; several would draw other actions")
        has_workers = actors is not None or self.max_staleness is not None
        if has_workers and not self.environment_steps:
            raise ValueError(
                "`max_staleness`, `actor`: actors take own steps: give `environment_steps`, or remove them"
            )
        if actors is not None and actors.workers > self.num_envs:
            raise ValueError(f"resources: {actors.workers} actors share {self.num_envs} worlds: raise `num_envs`")
        if has_workers and self.teacher is not None:
            raise ValueError("`teacher` chooses tasks in the trainer's process: remove it, or `actor`, `max_staleness`")
        idle = [name for name in ("exploration", "relabel", "segment_reward") if getattr(self, name) is not None]
        if self.max_staleness is not None and idle:
            raise ValueError(f"`max_staleness`: rollouts are collected without `{idle[0]}`; remove one of both")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the policy."""
        return {"model": "control_policy"}
