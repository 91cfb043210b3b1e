"""kind: practice — text experiences gained by comparing rollouts; weights do not change."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.agent import ExtractorUse
from schemas.chat import Chat
from schemas.endpoint import Capped
from schemas.references import AgentRef, PolicyRef, PromptsRef
from schemas.stages.base import BaseStage, ReportSection, RewardTests
from schemas.use import EngineUse, PromptSamplerUse, RewardUse


class Practice(Capped, Chat, RewardTests, BaseStage):
    """Sample groups with the experiences so far in the prompt, score them, and extract what separates good from bad.

    Training-Free GRPO (Cai et al. 2025, arXiv:2510.08191): the group comparison of GRPO, with experiences instead
    of gradients.
    """

    can: ClassVar = frozenset({"rollout", "reward"})
    report_section: ClassVar = ReportSection(detail="experiences")

    kind: Literal["practice"]
    model: PolicyRef
    """Model that samples the rollouts; its weights are not changed."""
    prompts: PromptsRef
    """Problems to practise on."""
    agent: AgentRef | None = None
    """Agent whose experiences are extended; null: a new agent without environment, tools and experiences."""
    rewards: list[RewardUse] = Field(default=[RewardUse(use="answers.exact")], min_length=1)
    """Functions that score a rollout; the score is their weighted sum."""
    prompt_sampler: PromptSamplerUse = PromptSamplerUse(use="uniform")
    """Chooses the problems of a round."""
    extractor: ExtractorUse = ExtractorUse(use="first_difference")
    """Updates the experiences from a group whose rollouts differ in score."""
    min_margin: float = Field(default=0.0, ge=0)
    """A group is used only if its best and worst scores differ by more than this."""
    max_experiences: int = Field(default=64, ge=1)
    """Most experiences to keep; the oldest are removed first."""
    max_steps: int = Field(default=3, ge=1)
    """Number of rounds; each samples, scores and extracts."""
    generation_batch_size: int = Field(default=64, ge=1)
    """Rollouts per round."""
    num_generations: int = Field(default=8, ge=2)
    """Rollouts per problem (the group size)."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    max_completion_length: int = Field(default=64, ge=1)
    """Most tokens per rollout, including those of the environment's answers."""
    engine: EngineUse = EngineUse(use="torch")
    """Engine that samples completions."""

    @model_validator(mode="after")
    def require_complete_groups(self) -> Self:
        """Require that a round consists of complete groups."""
        if self.generation_batch_size % self.num_generations:
            raise ValueError("generation_batch_size must be a multiple of num_generations: groups are sampled whole")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the agent with its experiences, and the record of all rounds (rollouts, scores, experiences)."""
        return {"agent": "agent", "rounds": "directory"}
