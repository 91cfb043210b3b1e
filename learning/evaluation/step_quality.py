"""How good a process reward model is on solutions it has not seen.

Shapes: S steps of a solution, N solutions.
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from learning.evaluation.statistics import estimate_mean


class StepQuality(TypedDict):
    """How good a process reward model is on held-out solutions."""

    solutions: int
    steps: int
    loss: float
    """Mean cross-entropy of steps, in nats."""
    accuracy: dict[str, float]
    """Share of steps on the right side of 0.5, with its interval over solutions."""
    right_steps: dict[str, float]
    """Number of steps with a label of at least 0.5, and the share of them that is recognised."""
    wrong_steps: dict[str, float]
    """The same for all other steps."""
    first_error: dict[str, float]
    """Share of solutions in which the first wrong step, or that there is none, is found (as in ProcessBench)."""


def measure_step_quality(
    probabilities: Sequence[np.ndarray], labels: Sequence[np.ndarray], *, confidence: float = 0.95, seed: int = 0
) -> StepQuality:
    """Return the report on held-out solutions from the probability and the label of each step (S,) of each."""
    p, y = np.concatenate(probabilities), np.concatenate(labels)
    right = (p >= 0.5) == (y >= 0.5)
    limits = np.clip(p, 1e-12, 1 - 1e-12)
    accuracy_N = np.array(
        [np.mean((p_S >= 0.5) == (y_S >= 0.5)) for p_S, y_S in zip(probabilities, labels, strict=True)]
    )
    first_N = np.array(
        [float(find_first_wrong(p_S) == find_first_wrong(y_S)) for p_S, y_S in zip(probabilities, labels, strict=True)]
    )
    return {
        "solutions": len(labels),
        "steps": len(y),
        "loss": float(-(y * np.log(limits) + (1 - y) * np.log(1 - limits)).mean()),
        "accuracy": {"value": float(right.mean()), **_describe_interval(accuracy_N, confidence, seed)},
        "right_steps": _describe_share(right[y >= 0.5]),
        "wrong_steps": _describe_share(right[y < 0.5]),
        "first_error": {"value": float(first_N.mean()), **_describe_interval(first_N, confidence, seed)},
    }


def find_first_wrong(score_S: np.ndarray) -> int:
    """Return the place of the first step below 0.5; −1 if there is none."""
    wrong = np.flatnonzero(score_S < 0.5)
    return int(wrong[0]) if len(wrong) else -1


def _describe_share(right: np.ndarray) -> dict[str, float]:
    return {"n": len(right), **({"recognised": float(right.mean())} if len(right) else {})}


def _describe_interval(values_N: np.ndarray, confidence: float, seed: int) -> dict[str, float]:
    estimate = estimate_mean(values_N, confidence=confidence, num_bootstrap=10_000, seed=seed)
    assert estimate is not None
    return {"low": estimate.low, "high": estimate.high, "confidence": confidence}
