"""Rewards for the form of a completion."""

import re
from typing import Annotated, Any

from pydantic import Field

from learning.data.patterns import MatchTimeout, Pattern
from schemas.errors import StepError


def matches(rows: list[dict[str, Any]], completions: list[str], *, pattern: str) -> list[float | None]:
    """1 where the whole completion matches the regular expression, else 0. Raises StepError for a bad pattern.

    None where the pattern has found no answer within its time (`learning.data.patterns`).
    """
    try:
        wanted = Pattern(pattern, re.DOTALL)
    except re.error as error:
        raise StepError(f"formats.matches: pattern {pattern!r}: {error}") from error
    return [_score_match(wanted, completion.strip()) for completion in completions]


def _score_match(wanted: Pattern, text: str) -> float | None:
    try:
        return float(wanted.fullmatch(text) is not None)
    except MatchTimeout:
        return None


def brevity(
    rows: list[dict[str, Any]],
    completions: list[str],
    *,
    soft: Annotated[int, Field(ge=0)],
    hard: Annotated[int, Field(ge=1)],
) -> list[float | None]:
    """0 up to `soft` characters, falling linearly to −1 at `hard` and beyond (DAPO, Yu et al. 2025, eq. 13)."""
    if hard <= soft:
        raise StepError(f"formats.brevity: hard ({hard}) must exceed soft ({soft})")
    return [-min(max((len(text) - soft) / (hard - soft), 0.0), 1.0) for text in completions]
