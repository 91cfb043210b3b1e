"""kind: synthesize — prompts, completions or preference pairs."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.endpoint import Capped
from schemas.references import PolicyRef, PreferencePairsRef, PromptsRef
from schemas.stages.base import BaseStage, ReportSection
from schemas.use import EngineUse, ProblemsUse, RewardUse, SearchUse, TeacherUse


class Synthesize(Capped, BaseStage):
    """Write data: problems alone, with a teacher's completions, or with a model's own samples."""

    can: ClassVar = frozenset({"rollout", "reward"})
    counts_yield: ClassVar = True
    report_section: ClassVar = ReportSection(detail="yield", may_be_empty=False)

    kind: Literal["synthesize"]
    problems: list[ProblemsUse] = []
    """Generators of problems; or give `prompts`."""
    prompts: PromptsRef | None = None
    """Problems made by another stage."""
    emit: Literal["prompts", "chat", "preference_pairs"] = "chat"
    """What to write. `preference_pairs` pairs the best with the worst of a model's samples; both scores are noted."""
    teacher: TeacherUse | None = None
    """Teacher of `chat`: a program, or `endpoint`, a model behind a server, whose replies are sampled and rejected as
    those of `model`."""
    model: PolicyRef | None = None
    """Model to sample from instead."""
    engine: EngineUse = EngineUse(use="torch")
    """Turns prompts into tokens."""
    num_generations: int = Field(default=4, ge=1)
    """Samples per problem."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    max_completion_length: int = Field(default=64, ge=1)
    """Tokens per completion."""
    search: SearchUse = SearchUse(use="samples")
    """How samples come about: each for itself, or by a search in which one builds on another."""
    rewards: list[RewardUse] = [RewardUse(use="answers.exact")]
    """Score of a sample: what rejection and pairing go by."""
    min_reward: float = 1.0
    """Rejection: `chat` keeps samples with at least this reward."""
    min_margin: float = Field(default=0.5, gt=0)
    """Pairing: `preference_pairs` keeps pairs whose rewards differ by at least this."""
    earlier: PreferencePairsRef | None = None
    """Pairs that come before the new ones, as those of the rounds before."""
    notes: dict[str, str | int | float] = {}
    """Added to the metadata of every row that is made, as `{round: 2}`."""

    @model_validator(mode="after")
    def one_source(self) -> Self:
        """Exactly one source of problems and, unless only prompts are asked for, one author."""
        if bool(self.problems) == (self.prompts is not None):
            raise ValueError("give exactly one of `problems` (generators) and `prompts` (a stage's output)")
        if self.emit == "prompts" and (self.teacher or self.model):
            raise ValueError("`emit: prompts` writes no completions: drop `teacher` and `model`, or emit chat")
        if self.emit == "chat" and (self.teacher is None) == (self.model is None):
            raise ValueError("give exactly one of `teacher` and `model` (sampled)")
        if self.emit == "preference_pairs" and (self.model is None or self.num_generations < 2 or self.teacher):
            raise ValueError("preference pairs need `model` and `num_generations` of at least 2, and no `teacher`")
        if self.earlier is not None and self.emit != "preference_pairs":
            raise ValueError("`earlier` are preference pairs: they go with `emit: preference_pairs`")
        if self.search.use != "samples" and self.model is None:
            raise ValueError("`search` is about samples of a model: give `model`")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return one output, named as its type."""
        return {self.emit: self.emit}
