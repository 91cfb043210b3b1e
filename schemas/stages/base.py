"""What every stage can say."""

from collections.abc import Mapping

from pydantic import Field

from schemas.base import Schema


class Resources(Schema):
    """What one step needs of a Ray node."""

    num_cpus: float = Field(default=1, gt=0)
    """Logical cores; also the number of compute threads (at least one)."""
    num_gpus: float = Field(default=0, ge=0)
    """GPUs."""
    memory: str | None = Field(default=None, pattern=r"^\d+(\.\d+)?\s*(MB|GB|MiB|GiB)$")
    """Memory to reserve, as `2GiB`."""


class BaseStage(Schema):
    """Fields common to all kinds. None of them but `seed` enters the key of the step."""

    description: str = ""
    """Said in plans and reports."""
    after: list[str] = []
    """Stages that must finish first although no data comes from them."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Overrides the recipe's seed for this stage."""
    resources: Resources = Resources()
    """What the step needs of a Ray node."""
    retries: int = Field(default=0, ge=0, le=10)
    """How often to try again after a failure."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds after which the step's process is killed."""

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Named outputs and their types, the default first; `types` maps own port paths to the types they receive."""
        raise NotImplementedError
