"""What every stage can say."""

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from schemas.base import Schema
from schemas.resources import Resources


class BaseStage(Schema):
    """Fields common to all kinds. None of them but `seed` enters the key of the step."""

    can: ClassVar[frozenset[str]] = frozenset()
    """Roles of `resources` that the kind can give places of their own."""

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

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Named outputs and their types, the default first; `types` maps own port paths to the types they receive."""
        raise NotImplementedError
