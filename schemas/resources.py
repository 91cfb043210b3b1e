"""`resources:` of a stage: cores, GPUs and memory of its main process and of its roles."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema

MEMORY = r"^\d+(\.\d+)?\s*(MB|GB|MiB|GiB)$"
UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}
ROLES = ("train", "rollout", "reward", "reference", "actor", "policy")
"""Parts of a step that may run in their own processes, in the order in which Ray places them."""


class Role(Schema):
    """Separate worker processes for one part of a step; all amounts are per worker."""

    workers: int = Field(default=1, ge=1)
    """Number of processes."""
    num_cpus: float = Field(default=1, ge=0)
    """Logical cores per worker; also its number of compute threads (at least one)."""
    num_gpus: float = Field(default=0, ge=0)
    """GPUs per worker."""
    memory: str | None = Field(default=None, pattern=MEMORY)
    """Memory to reserve per worker, such as `2GiB`; null: none."""

    @model_validator(mode="after")
    def require_resource(self) -> Self:
        """Require some resource, without which Ray cannot place a process."""
        if not (self.num_cpus or self.num_gpus or self.memory):
            raise ValueError(
                "num_cpus: 0 without GPUs or memory reserves nothing; give at least a share of a core, as 0.5"
            )
        return self


class TrainRole(Role):
    """A training group: it makes the same optimiser steps as a single process."""

    strategy: Literal["ddp", "fsdp2"] = "ddp"
    """`ddp`: every worker holds the whole model; `fsdp2`: weights, gradients and optimiser state are sharded."""


class Resources(Schema):
    """What one step needs from Ray nodes, for its main process and for the roles that have their own workers.

    A role that is left out runs in the step's main process (or in the trainers, if `train` is given).
    """

    num_cpus: float = Field(default=1, ge=0)
    """Logical cores of the main process; also its number of compute threads (at least one). Default with `train`: 0."""
    num_gpus: float = Field(default=0, ge=0)
    """GPUs of the main process."""
    memory: str | None = Field(default=None, pattern=MEMORY)
    """Memory to reserve for the main process, such as `2GiB`; null: none."""
    train: TrainRole | None = None
    """Workers that train the model as one group."""
    rollout: Role | None = None
    """Workers that sample, each with its own engine."""
    reward: Role | None = None
    """Workers that score completions."""
    reference: Role | None = None
    """Workers that compute the reference's log-probabilities, each with a copy of it."""
    actor: Role | None = None
    """Workers of kind control that step worlds, without networks."""
    policy: Role | None = None
    """Worker of kind control that acts for all actors at once, with a copy of the policy."""

    @model_validator(mode="before")
    @classmethod
    def default_to_no_cores(cls, value: Any) -> Any:
        """Set `num_cpus` to 0 with `train`, as the main process only waits then."""
        if isinstance(value, Mapping) and value.get("train") is not None:
            return {"num_cpus": 0, **value}
        return value

    @model_validator(mode="after")
    def require_cores(self) -> Self:
        """Refuse a step without cores, unless it has `train`."""
        if not self.num_cpus and self.train is None:
            raise ValueError(
                "num_cpus: 0 needs a `train` role that does the work; give at least a share of a core, as 0.5"
            )
        return self

    def roles(self) -> Iterator[tuple[str, Role]]:
        """Yield the name and resources of every role that has its own workers."""
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


def parse_memory(memory: str | None) -> int:
    """Return the number of bytes in a text such as `2GiB`; 0 for None."""
    match = re.fullmatch(r"([\d.]+)\s*(\w+)", memory or "")
    return int(float(match[1]) * UNITS[match[2]]) if match else 0
