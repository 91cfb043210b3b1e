"""A slot: a place where a recipe names a function.

`advantage: [{use: center, by: group}]` names `learning.advantages:center`; the keys beside `use` are that
function's parameters after its `*`. A bare word `center` is the same as `{use: center}`. `pkg.module:function`
names code of the user's own. Options are checked against the signature by `schemas.signatures`.
"""

from typing import Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from schemas.base import Schema
from schemas.schedules import Number


class Use(Schema):
    """A function named in a recipe; each slot is a subclass that says where its names live."""

    model_config = ConfigDict(extra="allow")

    home: ClassVar[str | None] = None
    """Module (names are functions) or package (names are `module.function`); None: import paths only."""
    member: ClassVar[str | None] = None
    """Where set, names are modules of the home, and this is the class in each whose constructor takes the options."""
    takes: ClassVar[tuple[str, ...] | None] = None
    """What the loop supplies before the star; None: any of the columns it has, asked for by name."""

    use: str = Field(min_length=1)
    """Name of the function, or `package.module:function`."""

    @model_validator(mode="before")
    @classmethod
    def bare_word(cls, value: Any) -> Any:
        """Accept `center` for `{use: center}`."""
        return {"use": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """What the recipe sets beside the slot's own fields."""
        return dict(self.model_extra or {})


class TokenizerUse(Use):
    """Builds a tokenizer."""

    home = "learning.tokenizers"
    takes = ()


class ProblemsUse(Use):
    """Generates problems."""

    home = "learning.problems"
    takes = ()


class TeacherUse(Use):
    """Writes a worked completion for a problem."""

    home = "learning.teachers"
    takes = ("row", "rng")


class RewardUse(Use):
    """Scores completions; the weighted sum over the list is the reward."""

    home = "learning.rewards"
    takes = ("rows", "completions")
    weight: Number = 1.0
    """Factor in the sum; a schedule is allowed."""


class RowFilterUse(Use):
    """Says for each row whether to keep it."""

    home = "learning.quality"
    takes = ("row",)


class GroupFilterUse(Use):
    """Gate of the RL loop: says which sampled groups are trained on, from raw scores."""

    home = "learning.filters"
    takes = ("scores_P", "group_P")


class AdvantageUse(Use):
    """One operation of the advantage pipeline; the list is applied in order."""

    home = "learning.advantages"
    takes = ("column", "batch")


class RatioUse(Use):
    """Log-ratio of the trained policy to the sampling policy, at token or sequence level."""

    home = "learning.ratios"


class SurrogateUse(Use):
    """Per-token policy-gradient loss from log-ratio and advantage."""

    home = "learning.surrogates"


class WeighUse(Use):
    """Weight of every token in the loss, once per optimiser step over the global batch."""

    home = "learning.weighing"


class ComponentUse(Use):
    """A further term of the loss with its own mask and denominator."""

    home = "learning.components"
    coef: Number
    """Factor of the term; a schedule is allowed."""
    weigh: WeighUse | None = None
    """Weights of the term's tokens; null takes the stage's."""


class EngineUse(Use):
    """Turns prompts into tokens."""

    home = "learning.engines"
    takes = ("policy",)
    member = "Engine"


class MetricUse(Use):
    """A number from the scores of an evaluation."""

    home = "learning.metrics"
    takes = ("correct_PN",)


class MergeMethodUse(Use):
    """Makes one tensor of the same tensor of several models."""

    home = "learning.merging"


class FunctionUse(Use):
    """Any function of the user's own, by import path."""

    takes = ("context",)
