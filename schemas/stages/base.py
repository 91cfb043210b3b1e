"""The keys and traits common to all kinds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema
from schemas.resources import Resources


@dataclass(frozen=True)
class ReportSection:
    """The section of a report about the steps of a kind, laid out by `lineage/reports/sections/<kind>.html.j2`."""

    detail: str
    """Key of the manifest's details without which a step has no place in the section."""
    may_be_empty: bool = True
    """Whether a step is shown although that detail is empty."""
    is_result: bool = False
    """Whether the section comes before the gates and the curves."""


class BaseStage(Schema):
    """Fields common to all kinds. None of them but `seed` enters the key of the step.

    The class variables are the traits of a kind: what other packages know of it, declared here and nowhere else.
    """

    can: ClassVar[frozenset[str]] = frozenset()
    """Roles of `resources` that the kind can give places of their own."""
    fan_port: ClassVar[str | None] = None
    """Port that takes several models: the bare word of a matrix there means all its variants."""
    single_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of lists that may be written as one entry, without brackets."""
    data_port: ClassVar[str | None] = None
    """Port of the table whose rows the kind trains on."""
    learning_approach: ClassVar[Literal["supervised", "reinforcement-learning"] | None] = None
    """CycloneDX's word for how the kind learns."""
    drops_rows: ClassVar[bool] = False
    """Whether rows of the input may be missing from the output; `dropped` of the details counts them by reason."""
    shares_tokens: ClassVar[bool] = True
    """Whether the models of a step work on each other's tokens, and so need the same tokenizer and template."""
    defines_model: ClassVar[bool] = False
    """Whether `config`, `tokenizer` and `max_length` define the model that the kind makes; it receives none."""
    scores_models: ClassVar[bool] = False
    """Whether `table` of the details holds a number with its interval per model, metric and family."""
    counts_yield: ClassVar[bool] = False
    """Whether `yield` of the details counts what became of every sample, family by family."""
    report_section: ClassVar[ReportSection | None] = None
    """What a run's report shows of the kind besides steps, curves and cost."""

    description: str = ""
    """Said in plans and reports."""
    after: list[str] = []
    """Stages that must finish first although no data comes from them."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Overrides the recipe's seed for this stage."""
    resources: Resources = Resources()
    """What the step needs of Ray nodes."""
    retries: int = Field(default=0, ge=0, le=10)
    """How often to try again after a failure."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds after which the step's process is killed."""

    @model_validator(mode="after")
    def roles_it_has(self) -> Self:
        """Workers that nothing would be asked of are refused."""
        for name, _ in self.resources.roles():
            if name not in self.can:
                has = ", ".join(sorted(self.can)) or "none"
                raise ValueError(f"resources: this kind has no role `{name}`; roles that it can place: {has}")
        return self

    @property
    def optional_code(self) -> dict[str, tuple[str, str]]:
        """Return the module and the name of what each optional part that this stage uses runs.

        A task loads an optional part from here only, so that the key of a step holds the code of the parts it uses.
        """
        return {}

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return named outputs and their types, the default first; `types` maps own ports to the types they receive."""
        raise NotImplementedError
