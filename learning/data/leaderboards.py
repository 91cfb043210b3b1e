"""Scores of predictions, and their place on a board of other people's scores, which all metrics have in common."""

import math
from collections.abc import Callable, Sequence

Metric = Callable[[Sequence[str], Sequence[str]], float]
"""Score of predictions, given the right values; both are texts. Raise ValueError for what is no number."""


def _errors(predicted: Sequence[str], right: Sequence[str]) -> list[float]:
    pairs = [(float(a), float(b)) for a, b in zip(predicted, right, strict=True)]
    if not all(math.isfinite(a) and abs(a) < 1e100 for a, _ in pairs):
        raise ValueError("a prediction is no number of usual size")
    return [a - b for a, b in pairs]


def rmse(predicted: Sequence[str], right: Sequence[str]) -> float:
    """Return the root of the mean squared error."""
    return math.sqrt(mse(predicted, right))


def mse(predicted: Sequence[str], right: Sequence[str]) -> float:
    """Return the mean squared error."""
    return sum(error**2 for error in _errors(predicted, right)) / len(right)


def mae(predicted: Sequence[str], right: Sequence[str]) -> float:
    """Return the mean absolute error."""
    return sum(abs(error) for error in _errors(predicted, right)) / len(right)


def accuracy(predicted: Sequence[str], right: Sequence[str]) -> float:
    """Return the share of equal texts."""
    return sum(a == b for a, b in zip(predicted, right, strict=True)) / len(right)


METRICS: dict[str, tuple[Metric, bool]] = {
    "accuracy": (accuracy, True),
    "rmse": (rmse, False),
    "mse": (mse, False),
    "mae": (mae, False),
}
"""Name to function, and whether more is better."""


def find_position(score: float, board: Sequence[float], more_is_better: bool) -> int:
    """Return the place of a score on a board, from 1: that of the best entry that it equals or beats.

    Behind all entries it is one more than their number.
    """
    signed = sorted((entry if more_is_better else -entry for entry in board), reverse=True)
    own = score if more_is_better else -score
    return next((place for place, entry in enumerate(signed, 1) if own >= entry), len(signed) + 1)


def rank_score(score: float, boards: Sequence[Sequence[float]], more_is_better: bool) -> float:
    """Return the mean over boards of (N − position + 1) / N: the share of N entries that a score equals or beats."""
    shares = [(len(board) + 1 - find_position(score, board, more_is_better)) / len(board) for board in boards]
    return sum(shares) / len(shares)
