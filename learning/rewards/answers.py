"""Verifiable rewards for the final answer; None if a row cannot be scored."""

import re
from decimal import Decimal

from learning.data.rows import Row
from learning.reasoning_gym import families as gym
from learning.reasoning_gym import parsers as gym_parsers
from learning.reasoning_gym import verifiers

NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?")

ANY_NUMBER = re.compile(r"(?<![\w.])[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")
WORD = re.compile(r"\w+")


def exact(
    rows: list[Row], completions: list[str], *, marker: str | None = None, ignore_case: bool = False
) -> list[float | None]:
    """Exact match: 1 if the answer equals the row's after normalisation, else 0; None for rows without an answer.

    The answer is the entire completion or, with `marker`, the text after its last marker (without one the score is 0).
    White space and a final full stop are ignored, and numbers are compared as numbers.
    """
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        answer = extract_final_answer(completion, marker)
        if row["answer"] is None:
            scores.append(None)
        elif answer is None:
            scores.append(0.0)
        else:
            scores.append(float(normalise_answer(answer, ignore_case) == normalise_answer(row["answer"], ignore_case)))
    return scores


def last_number(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Return 1 if the last number in the completion equals the row's answer, else 0; None if that is no number.

    For models that answer in sentences: `3 + 4 is 7.` is right if the answer is 7.
    """
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        answer = normalise_answer(row["answer"] or "", ignore_case=False)
        last = next(reversed(list(ANY_NUMBER.finditer(completion))), None)
        right = last is not None and normalise_answer(last[0], ignore_case=False) == answer
        scores.append(float(right) if isinstance(answer, Decimal) else None)
    return scores


def mentions(rows: list[Row], completions: list[str]) -> list[float | None]:
    """Return 1 if the row's answer occurs in the completion as whole words, in any case; None without an answer."""
    return [
        None if not row["answer"] else float(f" {_words(row['answer'])} " in f" {_words(completion)} ")
        for row, completion in zip(rows, completions, strict=True)
    ]


def _words(text: str) -> str:
    return " ".join(WORD.findall(text.casefold()))


def scored(rows: list[Row], completions: list[str], *, marker: str | None = None) -> list[float | None]:
    """Score from 0 to 1 of reasoning-gym's verifier for the row's family; for problems with many right answers.

    Verifiers run in the sandbox, except those known to only compare the answer (`learning.reasoning_gym.parsers`). None
    if a verifier fails, gives no score or takes too long. Raise StepError if reasoning-gym did not make the row, or if
    this machine cannot run the sandbox.
    """
    scores: list[float | None] = [0.0] * len(rows)
    sent: list[int] = []
    answers = [extract_final_answer(completion, marker) for completion in completions]
    for i, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        if answer is None:
            continue
        if gym_parsers.compares_only(row):
            scores[i] = score_in_process(row, answer.strip())
        else:
            sent.append(i)
    verdicts = verifiers.judge([rows[i] for i in sent], [(answers[i] or "").strip() for i in sent])
    for i, verdict in zip(sent, verdicts, strict=True):
        scores[i] = verdict.score
    return scores


def score_in_process(row: Row, text: str) -> float | None:
    """Return the score of a verifier that only compares, run in this process; None if it fails."""
    source, entry = gym.entry_of(row)
    try:
        return gym.score_of(source, entry, text)
    except Exception:
        return None


def extract_final_answer(completion: str, marker: str | None) -> str | None:
    """Return the text after the last marker, None if there is none; the entire completion if `marker` is None."""
    if not marker:
        return completion
    _, separator, text = completion.rpartition(marker)
    return text if separator else None


def normalise_answer(text: str, ignore_case: bool) -> str | Decimal:
    """Return the form in which answers are compared."""
    text = " ".join(text.split()).removesuffix(".")
    if NUMBER.fullmatch(text):
        return Decimal(text.replace(",", ""))
    return text.casefold() if ignore_case else text
