"""kind: rl — reinforcement learning with a composable algorithm."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.references import PolicyRef, PromptsRef
from schemas.stages.base import BaseStage
from schemas.training import Training
from schemas.use import (
    AdvantageUse,
    ComponentUse,
    EngineUse,
    GroupFilterUse,
    RatioUse,
    RewardUse,
    SurrogateUse,
    WeighUse,
)


class Rl(Training, BaseStage):
    """Sample groups of completions, score them, and follow the policy gradient.

    The algorithm is a composition: `filter`, `advantage`, `ratio`, `surrogate`, `weigh` and `components` are slots.
    `algorithm: grpo` fills them from `recipes/algorithms/grpo.yaml`; a slot given here replaces the preset's.
    """

    kind: Literal["rl"]
    model: PolicyRef
    """Policy to start from; also the reference of KL terms unless `reference` is given."""
    prompts: PromptsRef
    """Problems to sample completions for."""
    algorithm: str | None = None
    """Name of the preset that filled the slots below."""
    rewards: list[RewardUse] = Field(min_length=1)
    """Verifiable and learned rewards; their weighted sum is the reward."""
    filter: GroupFilterUse | None = None
    """Which groups are trained on, judged by raw scores; null trains on all."""
    advantage: list[AdvantageUse] = Field(min_length=1)
    """Operations from rewards to advantages, in order."""
    ratio: RatioUse
    """Log-ratio of the trained policy to the sampling policy."""
    surrogate: SurrogateUse
    """Per-token loss."""
    weigh: WeighUse
    """Weight of each token, over the global batch."""
    components: list[ComponentUse] = []
    """Further terms of the loss: KL, entropy."""
    reference: PolicyRef | None = None
    """Reference policy of KL terms; null is the starting model."""
    engine: EngineUse = EngineUse(use="torch")
    """Turns prompts into tokens."""
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
    mask_truncated_completions: bool = False
    """Leave completions that hit the length limit out of the loss (and, unless `weigh` says so, its denominator)."""
    max_steps: int = Field(ge=1)
    """Iterations of sample, score, update."""
    log_trajectories: float = Field(default=1.0, ge=0, le=1)
    """Share of the groups whose trajectories are kept as Parquet."""

    @model_validator(mode="after")
    def whole_groups(self) -> Self:
        """Sampling is by whole groups, and mini-batches are cut at group borders."""
        if self.generation_batch_size % self.num_generations:
            raise ValueError("generation_batch_size must be a multiple of num_generations: groups are sampled whole")
        if self.generation_batch_size // self.num_generations < self.num_mini_batches:
            raise ValueError("num_mini_batches exceeds the number of groups; lower it or raise generation_batch_size")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """The trained policy and what it sampled."""
        return {"model": "policy", "trajectories": "trajectories"}
