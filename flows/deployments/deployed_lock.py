"""Deployments pinned to a lock: they run only the version of a recipe that they were deployed with."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from flows.planning.locking import lock_path, read_lock
from flows.planning.recipe_plan import plan_recipe
from lineage.audit.chain import read_chain
from lineage.layout import Layout
from schemas.errors import PlanError


class RunOptions(TypedDict):
    """The options of a deployment's run, as `plan_recipe` takes them."""

    profile: str | None
    to: list[str]
    start: list[str]
    fresh: bool
    overrides: list[str]
    locked: bool


@dataclass(frozen=True)
class RecipeLock:
    """The lock that a deployment is pinned to."""

    digest: str
    """sha256 of the lock's file."""
    profile: str | None
    """Profile that the lock is of."""


def read_current_lock(recipe: Path, layout: Layout) -> RecipeLock:
    """Return the lock of a recipe that has not drifted from it. Raise RecipeError or PlanError."""
    lock = _read_lock(recipe)
    plan_recipe(recipe, layout, profile=lock.profile, locked=True)
    return lock


def apply_lock(layout: Layout, recipe: str, locked: str | None, options: RunOptions) -> RunOptions:
    """Return the options of a deployment's run: unchanged, or pinned to the lock that it was deployed with.

    The audit log names the lock; where it does not, as on another machine, the deployment's own parameter does. Raise
    PlanError if the lock is another one, or a run asks for what a lock does not allow.
    """
    digest = _find_deployed_lock(layout, recipe) or locked
    if not digest:
        return options
    again = f"to accept the changes, deploy it again: posttrain deploy --locked {recipe}"
    lock = _read_lock(Path(recipe))
    if lock.digest != digest or locked not in (None, "", digest):
        raise PlanError(f"{lock_path(recipe)} is not the lock that {recipe} was deployed with; {again}")
    if options["overrides"] or options["profile"] not in (None, lock.profile):
        raise PlanError(f"{recipe} is deployed with its lock: a run takes no seed, overrides or other profile; {again}")
    return {**options, "profile": lock.profile, "locked": True}


def _read_lock(recipe: Path) -> RecipeLock:
    file = lock_path(recipe)
    lock = read_lock(file)
    return RecipeLock(hashlib.sha256(file.read_bytes()).hexdigest(), lock.get("profile"))


def _find_deployed_lock(layout: Layout, recipe: str) -> str | None:
    """Return the lock that a recipe was last deployed with, from the audit log; None without one."""
    deployed = [entry["facts"] for entry in read_chain(layout).entries if entry["action"] == "deployed"]
    path = (layout.root / recipe).resolve()  # however the path is written
    here = (facts for facts in reversed(deployed) if (layout.root / str(facts.get("file"))).resolve() == path)
    return next((facts.get("locked") for facts in here), None)
