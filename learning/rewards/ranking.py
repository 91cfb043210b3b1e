"""Rewards for rankings: the order of a completion's numbers against that of the reference."""

import re
from collections.abc import Sequence

from learning.data.rows import Row

NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def kendall(
    rows: list[Row], completions: list[str], *, floor: float | None = -1.0, unit: bool = False
) -> list[float | None]:
    """Kendall's τ between the numbers of the completion and those of the row's answer (URPO, 2025).

    With the answer `9 5 7` the first is best. Ties in the answer are skipped; a tie of the completion counts 0. A
    completion with another number of scores gets `floor` (null: it cannot be scored), as does an answer of ties only.
    `unit` maps −1 … 1 to 0 … 1. A row whose answer has fewer than two numbers is no ranking and cannot be scored.
    """
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        reference = [float(n) for n in NUMBER.findall(row["answer"] or "")]
        predicted = [float(n) for n in NUMBER.findall(completion)]
        tau = compute_kendall_tau(predicted, reference) if reference and len(predicted) == len(reference) else None
        if len(reference) < 2:
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
