"""kind: synthesize — prompts, completions or preference pairs."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.chat import Chat
from schemas.endpoint import Capped
from schemas.references import PolicyRef, PreferencePairsRef, PromptsRef
from schemas.stages.base import BaseStage, ReportSection, RewardTests
from schemas.training import Dtype
from schemas.use import EngineUse, ProblemsUse, RewardUse, SearchUse, TeacherUse


class Synthesize(Capped, Chat, RewardTests, BaseStage):
    """Create data: problems alone, with a teacher's completions, or with a model's own samples."""

    can: ClassVar = frozenset({"rollout", "reward"})
    counts_yield: ClassVar = True
    report_section: ClassVar = ReportSection(detail="yield", may_be_empty=False)

    kind: Literal["synthesize"]
    problems: list[ProblemsUse] = []
    """Generators of problems; or give `prompts`."""
    prompts: PromptsRef | None = None
    """Problems made by another stage."""
    emit: Literal["prompts", "chat", "preference_pairs"] = "chat"
    """Type of the data. `preference_pairs` pairs the best with the worst of a model's samples, with both scores."""
    teacher: TeacherUse | None = None
    """Source of the completions of `chat`: a program, or `endpoint`, a model behind a server, whose replies pass the
    same rejection as samples of `model`."""
    model: PolicyRef | None = None
    """Model to sample from, instead of `teacher`."""
    engine: EngineUse = EngineUse(use="torch")
    """Engine that samples completions."""
    dtype: Dtype = "float32"
    """Precision of the weights of models that are loaded here."""
    num_generations: int = Field(default=4, ge=1)
    """Samples per problem."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    max_completion_length: int = Field(default=64, ge=1)
    """Most tokens per completion."""
    search: SearchUse = SearchUse(use="samples")
    """How samples are generated: independently, or by a search in which samples build on each other."""
    rewards: list[RewardUse] = [RewardUse(use="answers.exact")]
    """Functions that score a sample; rejection and pairing use their weighted sum."""
    min_reward: float = 1.0
    """Smallest reward of a sample that `chat` keeps."""
    min_margin: float = Field(default=0.5, gt=0)
    """Smallest difference of rewards in a pair that `preference_pairs` keeps."""
    earlier: PreferencePairsRef | None = None
    """Pairs to put before the new ones, such as those of previous rounds."""
    notes: dict[str, str | int | float] = {}
    """Added to the metadata of every new row, such as `{round: 2}`."""

    @model_validator(mode="after")
    def require_one_source(self) -> Self:
        """Require one source of problems and, unless `emit` is `prompts`, one source of completions."""
        if bool(self.problems) == (self.prompts is not None):
            raise ValueError("give exactly one of `problems` (generators) and `prompts` (a stage's output)")
        if self.emit == "prompts" and (self.teacher or self.model):
            raise ValueError("`emit: prompts` writes no completions: remove `teacher` and `model`, or use `emit: chat`")
        if self.emit == "chat" and (self.teacher is None) == (self.model is None):
            raise ValueError("give exactly one of `teacher` and `model`")
        if self.emit == "preference_pairs" and (self.model is None or self.num_generations < 2 or self.teacher):
            raise ValueError("preference pairs need `model` and `num_generations` of at least 2, and no `teacher`")
        if self.earlier is not None and self.emit != "preference_pairs":
            raise ValueError("`earlier` contains preference pairs: it needs `emit: preference_pairs`")
        chat = [name for name in Chat.model_fields if getattr(self, name) is not None]
        if chat and self.model is None:
            raise ValueError(f"`{chat[0]}` is about how a model's template writes prompts: give `model`")
        if self.search.use != "samples" and self.model is None:
            raise ValueError("`search` needs a model to sample from: give `model`")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return one output, named as its type."""
        return {self.emit: self.emit}
