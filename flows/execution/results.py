"""Tables that finished steps leave in the details of their manifests, for kinds whose traits declare them."""

from typing import TypedDict, TypeGuard

from schemas.manifest import NOTICES, Manifest
from schemas.stages.union import traits_of


class ScoredRow(TypedDict):
    """One number of an evaluation, with its interval."""

    model: str
    metric: str
    family: str
    value: float
    low: float
    high: float
    n: int


def read_scores(manifest: Manifest | None) -> list[ScoredRow]:
    """Return the numbers of an evaluation; none for other kinds, and for a step without a manifest."""
    if manifest is None or not traits_of(manifest.kind).scores_models:
        return []
    return manifest.details.get("table", [])


def read_yields(manifest: Manifest | None) -> list[dict[str, str | float | None]]:
    """Return what became of a step's samples, one row per family with the same columns; none for other kinds."""
    if manifest is None or not traits_of(manifest.kind).counts_yield:
        return []
    return manifest.details.get("yield") or []


def read_notices(manifest: Manifest | None) -> list[str]:
    """Return what a step reported about its result that a user should know; none for a step without a manifest."""
    return [] if manifest is None else manifest.details.get(NOTICES, [])


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a metric is a number; truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
