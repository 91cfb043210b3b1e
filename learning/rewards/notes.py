"""Rewards that are known before anything is sampled: what the metadata of a row say."""

from typing import Annotated

from pydantic import Field

from learning.data.rows import Row, read_metadata


def noted(
    rows: list[Row],
    completions: list[str],
    *,
    key: str,
    values: Annotated[list[str], Field(min_length=1)],
    reward: float = 1.0,
    otherwise: float = -1.0,
    missing: float | None = None,
) -> list[float | None]:
    """`reward` for rows whose metadata have one of `values` as their `key`, else `otherwise`; `missing` without a key.

    The completion is not looked at: for completions that were recorded with how they ended (rollout `recorded`).
    """
    notes = [read_metadata(row) for row in rows]
    return [missing if key not in note else reward if note[key] in values else otherwise for note in notes]
