"""The keys and traits common to all kinds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import JsonObject, Schema, WithOptionalCode
from schemas.resources import Resources

TextOrNumber = Annotated[str, Field(coerce_numbers_to_str=True)]
"""A text, or a number as YAML reads it."""


@dataclass(frozen=True)
class ReportSection:
    """The section of a report about the steps of a kind, laid out by `lineage/reports/sections/<kind>.html.j2`."""

    detail: str
    """Key of the manifest's details that a step needs to be shown in the section."""
    may_be_empty: bool = True
    """Whether a step is shown even if that detail is empty."""
    is_result: bool = False
    """Whether the section is placed before the gates and the curves."""


class BaseStage(WithOptionalCode):
    """Fields common to all kinds. Of these, only `seed` enters the key of the step.

    The class variables are the traits of a kind: all that other packages know about it.
    """

    can: ClassVar[frozenset[str]] = frozenset()
    """Roles of `resources` that can have their own processes in this kind."""
    fan_port: ClassVar[str | None] = None
    """Port that takes several models: the plain name of a matrix stage there means all its variants."""
    single_keys: ClassVar[frozenset[str]] = frozenset()
    """List keys that accept a single entry without brackets."""
    filled_in: ClassVar[frozenset[str]] = frozenset()
    """Keys that are filled in when a recipe is read, and that no recipe writes."""
    data_port: ClassVar[str | None] = None
    """Port of the table whose rows the kind trains on."""
    learning_approach: ClassVar[Literal["supervised", "reinforcement-learning"] | None] = None
    """Learning approach of the kind, as CycloneDX names it."""
    training_signal: ClassVar[Literal["demonstrations", "preferences", "rewards"] | None] = None
    """What the kind trains a policy on; None for kinds that train no policy."""
    runs_user_code: ClassVar[bool] = False
    """Whether a function of the user writes the outputs, so that a model may be in any format that can be loaded."""
    drops_rows: ClassVar[bool] = False
    """Whether the output may lack rows of the input; `dropped` in the details counts them by reason."""
    shares_tokens: ClassVar[bool] = True
    """Whether the models of a step read the same tokens, so that they need the same tokenizer and chat template."""
    defines_model: ClassVar[bool] = False
    """Whether the kind creates its model from `config`, `tokenizer` and `max_length` instead of receiving one."""
    scores_models: ClassVar[bool] = False
    """Whether `table` in the details holds one number with its interval per model, metric and family."""
    counts_yield: ClassVar[bool] = False
    """Whether `yield` in the details counts the outcome of every sample, per family."""
    presets: ClassVar[str] = "recipes/algorithms"
    """Folder with the presets that the key `algorithm` names."""
    usual_preset: ClassVar[str] = "grpo"
    """Preset that errors suggest where a stage names none."""
    report_section: ClassVar[ReportSection | None] = None
    """Section of the kind in a run's report, in addition to steps, curves and cost; None: no section."""

    description: str = ""
    """Text shown in plans and reports."""
    after: list[str] = []
    """Stages that must finish first although this stage reads no data from them."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Overrides the recipe's seed for this stage."""
    resources: Resources = Resources()
    """Resources that the step needs from Ray nodes."""
    retries: int = Field(default=0, ge=0, le=10)
    """Number of further attempts after a failure."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds after which the step's process is killed."""

    @property
    def task_module(self) -> str:
        """Module of `tasks` that runs the stage: that of its kind."""
        return getattr(self, "kind")  # noqa: B009 - declared by every kind

    @model_validator(mode="after")
    def refuse_unsupported_roles(self) -> Self:
        """Refuse resources for roles that this kind does not have."""
        for name, _ in self.resources.roles():
            if name not in self.can:
                roles = ", ".join(sorted(self.can)) or "none"
                raise ValueError(f"resources: this kind has no role `{name}`; its roles: {roles}")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return named outputs and their types, the default first; `types` maps own ports to the types they receive."""
        raise NotImplementedError


class RewardCase(Schema):
    """A problem with good and bad completions."""

    good: list[TextOrNumber] = Field(min_length=1)
    """Completions that deserve a score, and a higher one than all others."""
    bad: list[TextOrNumber] = []
    """Completions that must score below every good one."""
    prompt: TextOrNumber = ""
    """Text of the problem."""
    answer: TextOrNumber | None = None
    """Answer of the row that rewards compare with."""
    family: TextOrNumber = "tests"
    """Family of the row."""
    metadata: JsonObject = {}
    """Metadata of the row."""


class RewardTests(Schema):
    """Tests of rewards before they score anything; not part of the key."""

    tests: list[RewardCase] = []
    """Good and bad completions of some problems: `{prompt: 1+2=, answer: 3, good: [3], bad: [4]}`. `validate`, `plan`
    and `run` score them, and refuse the recipe unless every good one scores above every bad one."""
