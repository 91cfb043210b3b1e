"""Verifiable rewards: is the final answer right? None where a row cannot be scored."""

import re
from decimal import Decimal
from typing import Any

from learning.worlds.gym import entry_of

NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?")


def exact(
    rows: list[dict[str, Any]], completions: list[str], *, marker: str | None = None, ignore_case: bool = False
) -> list[float | None]:
    """1 where the answer is the row's, else 0, after normalisation; None for rows without an answer.

    The answer is the whole completion or, with `marker`, what follows its last marker (none: 0). White space and a
    final full stop do not matter, and numbers are compared as numbers.
    """
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        given = final_answer(completion, marker)
        if row["answer"] is None:
            scores.append(None)
        elif given is None:
            scores.append(0.0)
        else:
            scores.append(float(normal(given, ignore_case) == normal(row["answer"], ignore_case)))
    return scores


def scored(rows: list[dict[str, Any]], completions: list[str], *, marker: str | None = None) -> list[float | None]:
    """The score (0 to 1) that reasoning-gym's own verifier of the family gives; for problems with many right answers.

    Raises StepError for rows that reasoning-gym did not make.
    """
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        source, entry = entry_of(row)
        given = final_answer(completion, marker)
        scores.append(0.0 if given is None else float(source.score_answer(given.strip(), entry)))
    return scores


def final_answer(completion: str, marker: str | None) -> str | None:
    """What follows the last marker, None where there is none; without a marker everything."""
    if not marker:
        return completion
    _, found, text = completion.rpartition(marker)
    return text if found else None


def normal(text: str, ignore_case: bool) -> str | Decimal:
    """The form in which answers are compared."""
    text = " ".join(text.split()).removesuffix(".")
    if NUMBER.fullmatch(text):
        return Decimal(text.replace(",", ""))
    return text.casefold() if ignore_case else text
