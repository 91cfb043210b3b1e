"""Rewards for the format of a completion."""

import re
from typing import Annotated

from pydantic import Field

from learning.data.patterns import MatchTimeout, Pattern
from learning.data.rows import Row
from schemas.errors import StepError


def matches(rows: list[Row], completions: list[str], *, pattern: str) -> list[float | None]:
    """1 if the entire completion matches the regular expression, else 0.

    None if matching exceeds the time limit (`learning.data.patterns`). Raise StepError for an invalid pattern.
    """
    try:
        compiled = Pattern(pattern, re.DOTALL)
    except re.error as error:
        raise StepError(f"reward formats.matches: invalid pattern {pattern!r}: {error}") from error
    return [_score_match(compiled, completion.strip()) for completion in completions]


def _score_match(pattern: Pattern, text: str) -> float | None:
    try:
        return float(pattern.fullmatch(text) is not None)
    except MatchTimeout:
        return None


def brevity(
    rows: list[Row],
    completions: list[str],
    *,
    soft: Annotated[int, Field(ge=0)],
    hard: Annotated[int, Field(ge=1)],
) -> list[float | None]:
    """Length penalty in characters: 0 up to `soft`, linear to −1 at `hard` (DAPO, Yu et al. 2025, eq. 13)."""
    if hard <= soft:
        raise StepError(f"reward formats.brevity: hard ({hard}) must be above soft ({soft})")
    return [-min(max((len(text) - soft) / (hard - soft), 0.0), 1.0) for text in completions]
