"""Rewards for putting things in order: scores that a judge writes, against the order of the reference."""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rankings import LENGTH, worth

NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def kendall(
    rows: list[Row], completions: list[str], *, floor: float | None = -1.0, unit: bool = False
) -> list[float | None]:
    """Kendall's τ between the numbers of the completion and those of the row's answer (`9 5 7`: the first is best).

    Pairs that the answer does not tell apart do not count; a tie of the completion counts 0. Another count of
    numbers than the answer's earns `floor` (null: it cannot be scored), as does τ without a pair. `unit` brings −1 to 1
    into 0 to 1. A row without an answer cannot be scored. (The reward on preference items of URPO, 2025.)
    """
    found: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        wanted = [float(n) for n in NUMBER.findall(row["answer"] or "")]
        given = [float(n) for n in NUMBER.findall(completion)]
        tau = compute_kendall_tau(given, wanted) if wanted and len(given) == len(wanted) else None
        if row["answer"] is None:
            found.append(None)
        elif tau is None:
            found.append(floor)
        else:
            found.append((tau + 1) / 2 if unit else tau)
    return found


def compute_kendall_tau(given: Sequence[float], wanted: Sequence[float]) -> float | None:
    """Share of the pairs in order minus that of those out of order, of pairs that `wanted` tells apart; None: none."""
    pairs = [(i, j) for i in range(len(wanted)) for j in range(i) if wanted[i] != wanted[j]]
    signs = [(given[i] > given[j]) - (given[i] < given[j]) for i, j in pairs]
    told = [1 if wanted[i] > wanted[j] else -1 for i, j in pairs]
    return sum(a * b for a, b in zip(signs, told, strict=True)) / len(pairs) if pairs else None


def rises(
    rows: list[Row], completions: list[str], *, length: Annotated[int, Field(ge=2)] = LENGTH
) -> list[float | None]:
    """Worth of a string over the highest possible; 0 unless it is digits and begins as asked.

    It must have `length` digits. What an answer to an open problem is really worth: for evaluations.
    """
    found: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        begin = re.sub(r"\D", "", row["prompt"][-1]["content"])
        text = completion.strip()
        whole = len(text) == length and text.isascii() and text.isdecimal() and text.startswith(begin)
        found.append(worth(text) / (length - 1) if whole else 0.0)
    return found
