"""Modules that no key covers: what they do cannot change a result, or is in the key in another form.

The closure does not enter a module of this list, nor what is reached only through it. Code that computes values
(losses, sampling, rewards, advantages, arithmetic on weights) must never be listed
(docs/decisions/0030-boundaries-of-keys.md).
"""

from enum import Enum
from functools import cache
from typing import NamedTuple


class Reason(Enum):
    """Why the code of a module cannot change a result without changing the key."""

    PLACEMENT = "chosen by `resources` or by the machine, which are not in the key: where a step runs"
    STORAGE = (
        "writes bytes and reads the same bytes back, or refuses; a step that was killed and resumed gives the same bits"
    )
    SPENDING = (
        "counts what servers charge; at a limit the step fails or its settings, which are in the key, say what then"
    )
    RECORD = "writes for lineage what no later step reads; what lineage itself writes is in no key either"
    REFUSAL = "defines or raises errors only, and a failed step has no result"
    SETTINGS = "declares settings: validated and with all defaults, they are in the key themselves"
    NAMES = "finds what a name stands for when a plan is made, and the key has what was found"


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
    Boundary("tasks.context", Reason.PLACEMENT),
    Boundary("learning.models.checkpoint", Reason.STORAGE),
    Boundary("learning.parallel.random_states", Reason.STORAGE),
    Boundary("schemas.atomic_write", Reason.STORAGE),
    Boundary("schemas.sealed", Reason.STORAGE),
    Boundary("learning.data.rows_used", Reason.RECORD),
    Boundary("tasks.remote", Reason.SPENDING),
    Boundary("learning.api.spending", Reason.SPENDING),
    Boundary("learning.generation.engines.context_room", Reason.REFUSAL),
    Boundary("schemas.errors", Reason.REFUSAL),
    Boundary("schemas.stages", Reason.SETTINGS),
    Boundary("schemas.chat", Reason.SETTINGS),
    Boundary("schemas.training", Reason.SETTINGS),
    Boundary("schemas.references", Reason.SETTINGS),
    Boundary("schemas.base", Reason.SETTINGS),
    Boundary("schemas.use", Reason.SETTINGS),
    Boundary("schemas.addresses", Reason.NAMES),
    Boundary("schemas.package", Reason.NAMES),
)
"""Every module that keys leave out; a test holds this list to the modules that it names, and says what it may hold."""


@cache
def find_boundary(module: str) -> Boundary | None:
    """Return the boundary that a module lies behind; None for a module whose code keys cover."""
    for boundary in BOUNDARIES:
        if module == boundary.module or module.startswith(f"{boundary.module}."):
            return boundary
    return None
