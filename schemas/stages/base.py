"""What every stage can say."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema

MEMORY = r"^\d+(\.\d+)?\s*(MB|GB|MiB|GiB)$"
UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}
ROLES = ("train", "rollout", "reward", "reference")
"""Parts of a step that may have processes of their own, in the order of their places."""


class Role(Schema):
    """Processes of their own for one part of a step; what stands here is what each of them holds."""

    workers: int = Field(default=1, ge=1)
    """How many processes."""
    num_cpus: float = Field(default=1, ge=0)
    """Logical cores of each; also its compute threads (at least one)."""
    num_gpus: float = Field(default=0, ge=0)
    """GPUs of each."""
    memory: str | None = Field(default=None, pattern=MEMORY)
    """Memory that each reserves, as `2GiB`."""

    @model_validator(mode="after")
    def something_held(self) -> Self:
        """Ray has no place for a process that holds nothing."""
        if not (self.num_cpus or self.num_gpus or self.memory):
            raise ValueError("num_cpus: 0 leaves nothing to hold; give at least a share of a core, as 0.5")
        return self


class TrainRole(Role):
    """A group that trains one model together: it makes the steps that one process would make."""

    strategy: Literal["ddp", "fsdp2"] = "ddp"
    """ddp: every worker holds the whole model; fsdp2: each a share of weights, gradients and optimiser."""


class Resources(Schema):
    """What one step needs of Ray nodes: its own process, and the roles that have processes of their own.

    A role that is left out is done by the step's own process (by the trainers, where there is `train`).
    """

    num_cpus: float = Field(default=1, ge=0)
    """Logical cores; also the number of compute threads (at least one). With `train` it is 0 unless given."""
    num_gpus: float = Field(default=0, ge=0)
    """GPUs."""
    memory: str | None = Field(default=None, pattern=MEMORY)
    """Memory to reserve, as `2GiB`."""
    train: TrainRole | None = None
    """Workers that train as one group."""
    rollout: Role | None = None
    """Workers that each hold an engine and sample."""
    reward: Role | None = None
    """Workers that each score completions."""
    reference: Role | None = None
    """Workers that each hold the reference policy."""

    @model_validator(mode="before")
    @classmethod
    def waiting_is_free(cls, value: Any) -> Any:
        """The step's own process only waits while a group trains."""
        if isinstance(value, Mapping) and value.get("train") is not None:
            return {"num_cpus": 0, **value}
        return value

    @model_validator(mode="after")
    def something_held(self) -> Self:
        """A step that holds no core would never be waited for."""
        if not self.num_cpus and self.train is None:
            raise ValueError("num_cpus: 0 is for a step whose work is done by `train`; give at least a share of a core")
        return self

    def roles(self) -> Iterator[tuple[str, Role]]:
        """The roles that have places of their own, with what each worker holds."""
        for name in ROLES:
            if (role := getattr(self, name)) is not None:
                yield name, role

    @property
    def all_cpus(self) -> float:
        """Logical cores that the step holds with all its roles."""
        return self.num_cpus + sum(role.workers * role.num_cpus for _, role in self.roles())

    @property
    def all_gpus(self) -> float:
        """GPUs that the step holds with all its roles."""
        return self.num_gpus + sum(role.workers * role.num_gpus for _, role in self.roles())


def bytes_of(memory: str | None) -> int:
    """Bytes of `2GiB` and the like; 0 for none."""
    if memory is None:
        return 0
    number, unit = re.fullmatch(r"([\d.]+)\s*(\w+)", memory).groups()
    return int(float(number) * UNITS[unit])


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

    @property
    def optional_code(self) -> dict[str, tuple[str, str]]:
        """Return the module and the name of what each optional part that this stage uses runs.

        A task loads an optional part from here only, so that the key of a step holds the code of the parts it uses.
        """
        return {}

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Named outputs and their types, the default first; `types` maps own port paths to the types they receive."""
        raise NotImplementedError
