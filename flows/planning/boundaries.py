"""Modules that keys leave out: their code cannot change a result, or the key covers its effect in another form.

The closure does not enter a module of this list, nor what is reached only through it. Code that computes values
(losses, sampling, rewards, advantages, arithmetic on weights) must never be listed
(docs/decisions/0030-boundaries-of-keys.md).
"""

from enum import Enum
from functools import cache
from typing import NamedTuple


class Reason(Enum):
    """Why the code of a module cannot change a result without changing the key."""

    PLACEMENT = "depends on `resources` and the machine, which are not in the key: it decides where a step runs"
    STORAGE = "returns the bytes that it was given, or refuses: a killed and resumed step gives bit-identical results"
    SPENDING = "counts what servers charge; at a limit the step fails, or ends by a setting that is in the key"
    RECORD = "writes records for lineage and notices for people, which no later step reads"
    REFUSAL = "only defines or raises errors, and a failed step has no result"
    SETTINGS = "declares settings: the validated settings, defaults included, are in the key"
    NAMES = "resolves names when a plan is made, and the key covers the result"


class Boundary(NamedTuple):
    """A module or package that keys leave out."""

    module: str
    reason: Reason


BOUNDARIES = (
    Boundary("learning.generation.replicas.replica_worker", Reason.PLACEMENT),
    Boundary("learning.generation.replicas.replicas", Reason.PLACEMENT),
    Boundary("learning.generation.replicas.shared_engine", Reason.PLACEMENT),
    Boundary("learning.generation.weights.local", Reason.PLACEMENT),
    Boundary("learning.parallel.actors", Reason.PLACEMENT),
    Boundary("learning.parallel.pool", Reason.PLACEMENT),
    Boundary("learning.sampling.placed_rewards", Reason.PLACEMENT),
    Boundary("learning.models.memory", Reason.PLACEMENT),
    Boundary("learning.models.unread_weights", Reason.PLACEMENT),
    Boundary("tasks.context", Reason.PLACEMENT),
    Boundary("learning.models.checkpoint", Reason.STORAGE),
    Boundary("learning.parallel.random_states", Reason.STORAGE),
    Boundary("schemas.atomic_write", Reason.STORAGE),
    Boundary("schemas.sealed", Reason.STORAGE),
    Boundary("learning.data.rows_used", Reason.RECORD),
    Boundary("learning.rl.sample_counts", Reason.RECORD),
    Boundary("learning.samples.truncation", Reason.RECORD),
    Boundary("tasks.training_rows", Reason.RECORD),
    Boundary("tasks.remote", Reason.SPENDING),
    Boundary("learning.api.spending", Reason.SPENDING),
    Boundary("learning.generation.engines.context_room", Reason.REFUSAL),
    Boundary("schemas.errors", Reason.REFUSAL),
    Boundary("schemas.stages", Reason.SETTINGS),
    Boundary("schemas.chat", Reason.SETTINGS),
    Boundary("schemas.problem_sampling", Reason.SETTINGS),
    Boundary("schemas.training", Reason.SETTINGS),
    Boundary("schemas.references", Reason.SETTINGS),
    Boundary("schemas.base", Reason.SETTINGS),
    Boundary("schemas.use", Reason.SETTINGS),
    Boundary("schemas.addresses", Reason.NAMES),
    Boundary("schemas.package", Reason.NAMES),
)
"""All modules that keys leave out; tests check that each entry is needed and that its reason holds."""


@cache
def find_boundary(module: str) -> Boundary | None:
    """Return the boundary that a module lies behind; None for a module whose code keys cover."""
    for boundary in BOUNDARIES:
        if module == boundary.module or module.startswith(f"{boundary.module}."):
            return boundary
    return None
