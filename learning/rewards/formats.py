"""Rewards for the format of a completion."""

import re
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from learning.data.patterns import MatchTimeout, Pattern
from learning.data.rows import Row
from schemas.errors import StepError


def matches(
    rows: list[Row], completions: list[str], *, pattern: str, where: Literal["whole", "anywhere"] = "whole"
) -> list[float | None]:
    """1 if the entire completion matches the regular expression, or with `where: anywhere` a part of it, else 0.

    None if matching exceeds the time limit (`learning.data.patterns`). Raise StepError for an invalid pattern.
    """
    try:
        compiled = Pattern(pattern, re.DOTALL)
    except re.error as error:
        raise StepError(f"reward formats.matches: invalid pattern {pattern!r}: {error}") from error
    find = compiled.fullmatch if where == "whole" else compiled.search
    return [_score_match(find, completion.strip()) for completion in completions]


def contains(
    completions: list[str],
    *,
    texts: Annotated[list[str], Field(min_length=1)],
    ignore_case: bool = False,
    share: bool = False,
) -> list[float | None]:
    """1 if a completion contains every one of `texts`, else 0; with `share` the share of them that it contains."""
    wanted = [text.casefold() if ignore_case else text for text in texts]
    scores: list[float | None] = []
    for completion in completions:
        text = completion.casefold() if ignore_case else completion
        matches = sum(part in text for part in wanted) / len(wanted)
        scores.append(matches if share else float(matches == 1))
    return scores


def _score_match(find: Callable[[str], object], text: str) -> float | None:
    try:
        return float(find(text) is not None)
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
