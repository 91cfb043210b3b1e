"""Verifiable rewards: is the final answer right? None where a row cannot be scored."""

import re
from decimal import Decimal
from typing import Any

from learning.reasoning_gym import families as gym
from learning.reasoning_gym import parsers as gym_parsers
from learning.reasoning_gym import verifiers

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
        given = extract_final_answer(completion, marker)
        if row["answer"] is None:
            scores.append(None)
        elif given is None:
            scores.append(0.0)
        else:
            scores.append(float(normalise_answer(given, ignore_case) == normalise_answer(row["answer"], ignore_case)))
    return scores


def scored(rows: list[dict[str, Any]], completions: list[str], *, marker: str | None = None) -> list[float | None]:
    """The score (0 to 1) that reasoning-gym's own verifier of the family gives; for problems with many right answers.

    Verifiers read the answer in the sandbox, but for those that are known to do no more than compare it
    (`learning.reasoning_gym.parsers`). None where a verifier fails, gives no score or takes too long. Raises
    StepError for
    rows that reasoning-gym did not make, and where the guards of the sandbox are missing.
    """
    scores: list[float | None] = [0.0] * len(rows)
    sent: list[int] = []
    answers = [extract_final_answer(completion, marker) for completion in completions]
    for i, (row, given) in enumerate(zip(rows, answers, strict=True)):
        if given is None:
            continue
        if gym_parsers.compares_only(row):
            scores[i] = score_in_process(row, given.strip())
        else:
            sent.append(i)
    verdicts = verifiers.judge([rows[i] for i in sent], [(answers[i] or "").strip() for i in sent])
    for i, verdict in zip(sent, verdicts, strict=True):
        scores[i] = verdict.score
    return scores


def score_in_process(row: dict[str, Any], text: str) -> float | None:
    """The score of a verifier that only compares; None where it fails."""
    source, entry = gym.entry_of(row)
    try:
        return gym.score_of(source, entry, text)
    except Exception:
        return None


def extract_final_answer(completion: str, marker: str | None) -> str | None:
    """What follows the last marker, None where there is none; without a marker everything."""
    if not marker:
        return completion
    _, found, text = completion.rpartition(marker)
    return text if found else None


def normalise_answer(text: str, ignore_case: bool) -> str | Decimal:
    """The form in which answers are compared."""
    text = " ".join(text.split()).removesuffix(".")
    if NUMBER.fullmatch(text):
        return Decimal(text.replace(",", ""))
    return text.casefold() if ignore_case else text
