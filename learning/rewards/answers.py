"""Verifiable rewards for the final answer; None if a row cannot be scored."""

import math
import re
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from learning.data.rows import Row
from learning.reasoning_gym import families as gym
from learning.reasoning_gym import parsers as gym_parsers
from learning.reasoning_gym import verifiers

NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?")

ANY_NUMBER = re.compile(r"(?<![\w.])[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")
SCIENTIFIC = re.compile(r"(?<![\w.])[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d{1,3})?(?!\d)")
BOXED = "\\boxed{"
LONGEST_BOXED, LONGEST_SEARCHED, MOST_DIGITS = 1_000, 100_000, 100
"""Characters of the content of a box, of the end of a completion that is searched for a number, and of a number."""
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


def boxed(rows: list[Row], completions: list[str], *, ignore_case: bool = False) -> list[float | None]:
    r"""Return 1 if the content of the last `\boxed{…}` is the row's answer, else 0; None for rows without an answer.

    Braces inside may be nested. White space and a final full stop are ignored, and numbers are compared as numbers.
    """
    return [
        None
        if row["answer"] is None
        else float(
            (answer := find_boxed(completion)) is not None
            and normalise_answer(answer, ignore_case) == normalise_answer(row["answer"], ignore_case)
        )
        for row, completion in zip(rows, completions, strict=True)
    ]


def tagged(
    rows: list[Row],
    completions: list[str],
    *,
    tag: Annotated[str, Field(min_length=1)] = "answer",
    ignore_case: bool = False,
) -> list[float | None]:
    """Return 1 if the text in the last `<answer>…</answer>` is the row's answer, else 0; None for rows without one.

    `tag` names another tag. Texts are compared as in `exact`; a completion without the closed tag scores 0.
    """
    closed = [completion.rpartition(f"</{tag}>")[0].rpartition(f"<{tag}>") for completion in completions]
    texts = [text if opened else None for _, opened, text in closed]
    known = exact(rows, [text or "" for text in texts], ignore_case=ignore_case)
    return [score if score is None or text is not None else 0.0 for text, score in zip(texts, known, strict=True)]


def close(
    rows: list[Row],
    completions: list[str],
    *,
    rel_tol: Annotated[float, Field(ge=0)] = 1e-2,
    abs_tol: Annotated[float, Field(ge=0)] = 0.0,
    where: Literal["last", "boxed", "whole"] = "last",
) -> list[float | None]:
    r"""Return 1 if a number is near the row's answer: |x − answer| ≤ max(rel_tol·|answer|, abs_tol), else 0.

    The number is the last one of the completion, the content of the last `\boxed{…}`, or the entire completion; it may
    have an exponent (`1.5e3`). None for a row whose answer is no number.
    """
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        answer = read_number(row["answer"] or "")
        if answer is None:
            scores.append(None)
            continue
        text = find_boxed(completion) if where == "boxed" else completion
        number = find_last_number(completion) if where == "last" else read_number(text or "")
        scores.append(float(number is not None and abs(number - answer) <= max(rel_tol * abs(answer), abs_tol)))
    return scores


def find_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{…}` whose braces close within 1,000 characters; None without one."""
    start = text.rfind(BOXED)
    if start < 0:
        return None
    depth, begin = 1, start + len(BOXED)
    for place, character in enumerate(text[begin : begin + LONGEST_BOXED], begin):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[begin:place]
    return None


def find_last_number(text: str) -> float | None:
    """Return the last number of a text; None without one."""
    last = next(reversed(list(SCIENTIFIC.finditer(text[-LONGEST_SEARCHED:]))), None)
    return None if last is None else read_number(last[0])


def read_number(text: str) -> float | None:
    """Return the finite number that a text is, with thousands separators, a final full stop or an exponent, or None."""
    match = SCIENTIFIC.fullmatch(text.strip().removesuffix("."))
    number = math.inf if match is None or len(match[0]) > MOST_DIGITS else float(match[0].replace(",", ""))
    return number if math.isfinite(number) else None


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
