"""kind: practice — experiences from comparing rollouts; no weight changes."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.agent_slots import ExtractorUse
from schemas.endpoint import Capped
from schemas.references import AgentRef, PolicyRef, PromptsRef
from schemas.stages.base import BaseStage
from schemas.use import EngineUse, PromptSamplerUse, RewardUse


class Practice(Capped, BaseStage):
    """Sample groups with the experiences so far in the prompt, score them, and write down what told good from bad.

    Training-Free GRPO (Cai et al. 2025, arXiv:2510.08191): the group comparison of GRPO, with experiences in
    the place of gradients.
    """

    can: ClassVar = frozenset({"rollout", "reward"})

    kind: Literal["practice"]
    model: PolicyRef
    """Model that practises; it stays as it is."""
    prompts: PromptsRef
    """Problems to practise on."""
    agent: AgentRef | None = None
    """Agent whose experiences grow; null: one without environment, tools and experiences."""
    rewards: list[RewardUse] = Field(default=[RewardUse(use="answers.exact")], min_length=1)
    """Score of a rollout; the weighted sum over the list."""
    prompt_sampler: PromptSamplerUse = PromptSamplerUse(use="uniform")
    """Which problems a round samples."""
    extractor: ExtractorUse = ExtractorUse(use="first_difference")
    """What becomes of the experiences where the rollouts of a group differ in score."""
    min_margin: float = Field(default=0.0, ge=0)
    """A group whose best and worst scores differ by no more than this adds nothing."""
    max_experiences: int = Field(default=64, ge=1)
    """How many are kept; beyond that the oldest go."""
    max_steps: int = Field(default=3, ge=1)
    """Rounds of sample, score, extract."""
    generation_batch_size: int = Field(default=64, ge=1)
    """Rollouts of a round."""
    num_generations: int = Field(default=8, ge=2)
    """Rollouts per problem: the group."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    max_completion_length: int = Field(default=64, ge=1)
    """Tokens per rollout, observed ones too."""
    engine: EngineUse = EngineUse(use="torch")
    """Turns prompts into tokens."""

    @model_validator(mode="after")
    def whole_groups(self) -> Self:
        """Sampling is by whole groups."""
        if self.generation_batch_size % self.num_generations:
            raise ValueError("generation_batch_size must be a multiple of num_generations: groups are sampled whole")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """The agent with its experiences, and every round: rollouts, scores, what was learnt from which group."""
        return {"agent": "agent", "rounds": "directory"}
