"""Rewards for rankings: the order of a completion's numbers against that of the reference."""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rankings import LENGTH, count_rises

NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def kendall(
    rows: list[Row], completions: list[str], *, floor: float | None = -1.0, unit: bool = False
) -> list[float | None]:
    """Kendall's τ between the numbers of the completion and those of the row's answer (URPO, 2025).

    With the answer `9 5 7` the first is best. Ties in the answer are skipped; a tie of the completion counts 0. A
    completion with another number of scores gets `floor` (null: it cannot be scored), as does an answer of ties only.
    `unit` maps −1 … 1 to 0 … 1. A row without an answer cannot be scored.
    """
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        reference = [float(n) for n in NUMBER.findall(row["answer"] or "")]
        predicted = [float(n) for n in NUMBER.findall(completion)]
        tau = compute_kendall_tau(predicted, reference) if reference and len(predicted) == len(reference) else None
        if row["answer"] is None:
            scores.append(None)
        elif tau is None:
            scores.append(floor)
        else:
            scores.append((tau + 1) / 2 if unit else tau)
    return scores


def compute_kendall_tau(predicted: Sequence[float], reference: Sequence[float]) -> float | None:
    """Return the share of concordant minus discordant pairs, without ties of `reference`; None without pairs."""
    pairs = [(i, j) for i in range(len(reference)) for j in range(i) if reference[i] != reference[j]]
    signs = [(predicted[i] > predicted[j]) - (predicted[i] < predicted[j]) for i, j in pairs]
    true_signs = [1 if reference[i] > reference[j] else -1 for i, j in pairs]
    return sum(a * b for a, b in zip(signs, true_signs, strict=True)) / len(pairs) if pairs else None


def rises(
    rows: list[Row], completions: list[str], *, length: Annotated[int, Field(ge=2)] = LENGTH
) -> list[float | None]:
    """Value of a string of `length` digits over the highest possible; 0 for another string or beginning.

    The true value of an answer to the toy task of rankings, for evaluations.
    """
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        begin = re.sub(r"\D", "", row["prompt"][-1]["content"])
        text = completion.strip()
        valid = len(text) == length and text.isascii() and text.isdecimal() and text.startswith(begin)
        scores.append(count_rises(text) / (length - 1) if valid else 0.0)
    return scores
