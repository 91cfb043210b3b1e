"""Preferences between two completions of a problem: how likely the first is preferred to the second.

Every function here is a fair judge: P(a, b) + P(b, a) = 1. A preference need not be transitive.
"""

import math
from typing import cast

from learning.data.rows import Row
from learning.lookup import Inner, RewardFunction
from learning.rewards.answers import exact
from schemas.errors import StepError


def better(row: Row, first: str, second: str, *, of: RewardFunction, scale: float | None = None) -> float:
    """The one with the higher reward; with `scale` by Bradley-Terry, σ((a − b)/scale). What has no reward draws."""
    judge = cast(Inner, of)  # what an option names arrives bound
    a, b = judge(rows=[row, row], completions=[first, second], groups=[0, 0], sources=["policy", "policy"])
    if a is None or b is None:
        return 0.5
    return (a > b) + 0.5 * (a == b) if scale is None else _sigmoid((a - b) / scale)


def logistic(
    row: Row, first: str, second: str, *, correct: float = 2.0, brevity: float = 0.0, marker: str | None = None
) -> float:
    """σ(correct·(difference of being right) + brevity·(characters that the first is shorter by))."""
    right = _right(row, first, marker) - _right(row, second, marker)
    return _sigmoid(correct * right + brevity * (len(second) - len(first)))


def styles(row: Row, first: str, second: str, *, styles: list[str], correct: float = 2.0, cycle: float = 2.0) -> float:
    """σ(correct·(difference of being right) + cycle·(who beats whom)), of which no policy satisfies all.

    `styles` are at least three templates with {answer}; each beats the next one and the last beats the first, as stone,
    scissors and paper do. Others draw. What is in no style loses to what is in one.
    """
    if len(styles) < 3 or any("{answer}" not in style for style in styles):
        raise StepError("duel styles: give at least three templates that show {answer}")
    (a, said_a), (b, said_b) = (_style(text, styles) for text in (first, second))
    right = _right(row, said_a, None) - _right(row, said_b, None)
    return _sigmoid(correct * right + cycle * _beats(a, b, len(styles)))


def _beats(a: int, b: int, count: int) -> int:
    """1 where style a beats style b, −1 where it loses to it; −1 as a style is none."""
    if min(a, b) < 0:
        return (a >= 0) - (b >= 0)
    return int((b - a) % count == 1) - int((a - b) % count == 1)


def _style(text: str, styles: list[str]) -> tuple[int, str]:
    """Which template a text fits, the one with the most words of its own first (−1: none), and the answer in it."""
    for index in sorted(range(len(styles)), key=lambda i: -len(styles[i])):
        before, _, after = styles[index].partition("{answer}")
        if text.startswith(before) and text.endswith(after) and len(text) > len(before) + len(after):
            return index, text[len(before) : len(text) - len(after)]
    return -1, text


def _right(row: Row, text: str, marker: str | None) -> float:
    return exact([row], [text], marker=marker)[0] or 0.0


def _sigmoid(x: float) -> float:
    return (1 + math.tanh(x / 2)) / 2
