"""Reward modelling from pairs: the Bradley-Terry loss, and how good a reward model is on pairs it has not seen.

Shapes: P pairs.
"""

from typing import TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from learning.evaluation.statistics import estimate_mean

BINS = 10


class Calibration(TypedDict):
    """Expected calibration error, and confidence and accuracy in each bin."""

    expected_calibration_error: float
    bins: list[dict[str, float]]


class LengthBias(TypedDict):
    """Correlations of rewards with token counts, mean token counts, and accuracy by which side is longer."""

    correlation: float | None
    correlation_within_pairs: float | None
    chosen_tokens: float
    rejected_tokens: float
    accuracy: dict[str, dict[str, float | None]]


class RewardQuality(TypedDict):
    """How good a reward model is on held-out pairs."""

    pairs: int
    accuracy: dict[str, float]
    loss: float
    rewards: dict[str, float]
    length_bias: LengthBias
    calibration: Calibration


def compute_bradley_terry_loss(
    chosen_P: Tensor, rejected_P: Tensor, margin_P: Tensor | None = None, center_rewards_coefficient: float = 0.0
) -> Tensor:
    """Return -log sigmoid(r_chosen - r_rejected - margin) + coefficient (r_chosen + r_rejected)^2 of each pair: (P,).

    Bradley & Terry 1952; margin: Touvron et al. 2023 (Llama 2, eq. 2); centring: Eisenstein et al. 2023, eq. 2.
    """
    delta_P = chosen_P - rejected_P
    loss_P = -logsigmoid(delta_P if margin_P is None else delta_P - margin_P)
    if center_rewards_coefficient:
        loss_P = loss_P + center_rewards_coefficient * (chosen_P + rejected_P) ** 2
    return loss_P


def measure_calibration(delta_P: np.ndarray, bins: int = BINS) -> Calibration:
    """Return the expected calibration error of sigmoid(delta), and its table (Guo et al. 2017, eq. 3).

    The model's confidence is that of the side it prefers, in [0.5, 1], and it is right when that side is the chosen
    one (a tie is half right). Bins are equally wide; the error is the mean gap of confidence and accuracy.
    """
    confidence_P = 1 / (1 + np.exp(-np.abs(delta_P)))
    right_P = score_correct(delta_P)
    index_P = np.minimum(((confidence_P - 0.5) * 2 * bins).astype(int), bins - 1)
    table: list[dict[str, float]] = []
    error = 0.0
    for b in range(bins):
        here_P = index_P == b
        if not here_P.any():
            continue
        confidence, accuracy, n = confidence_P[here_P].mean(), right_P[here_P].mean(), int(here_P.sum())
        error += n / len(delta_P) * abs(confidence - accuracy)
        table.append({"from": 0.5 + b / bins / 2, "n": n, "confidence": float(confidence), "accuracy": float(accuracy)})
    return {"expected_calibration_error": float(error), "bins": table}


def score_correct(delta_P: np.ndarray) -> np.ndarray:
    """Return 1 where the chosen side has the higher reward, 0.5 at a tie, else 0."""
    return (np.sign(delta_P) + 1) / 2


def measure_length_bias(
    chosen_P: np.ndarray, rejected_P: np.ndarray, chosen_tokens_P: np.ndarray, rejected_tokens_P: np.ndarray
) -> LengthBias:
    """Return how rewards depend on length: correlation with tokens, and accuracy by the longer side.

    `correlation` is Pearson's over all completions; `correlation_within_pairs` that of the differences within pairs,
    which the prompt cannot explain. None where one of the two never varies.
    """
    right_P = score_correct(chosen_P - rejected_P)
    cases = {
        "chosen_longer": chosen_tokens_P > rejected_tokens_P,
        "chosen_shorter": chosen_tokens_P < rejected_tokens_P,
        "equal_length": chosen_tokens_P == rejected_tokens_P,
    }
    by_case: dict[str, dict[str, float | None]] = {
        k: {"n": int(m.sum()), "accuracy": float(right_P[m].mean()) if m.any() else None} for k, m in cases.items()
    }
    rewards, tokens = np.concatenate([chosen_P, rejected_P]), np.concatenate([chosen_tokens_P, rejected_tokens_P])
    return {
        "correlation": _pearson(rewards, tokens),
        "correlation_within_pairs": _pearson(chosen_P - rejected_P, chosen_tokens_P - rejected_tokens_P),
        "chosen_tokens": float(chosen_tokens_P.mean()),
        "rejected_tokens": float(rejected_tokens_P.mean()),
        "accuracy": by_case,
    }


def _pearson(x: np.ndarray, y: np.ndarray) -> float | None:
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def measure_quality(
    rewards_P2: np.ndarray, tokens_P2: np.ndarray, *, confidence: float = 0.95, seed: int = 0
) -> RewardQuality:
    """Return the report on held-out pairs: rewards and completion lengths as columns (chosen, rejected)."""
    chosen_P, rejected_P = rewards_P2.T
    delta_P = chosen_P - rejected_P
    accuracy = estimate_mean(score_correct(delta_P), confidence=confidence, num_bootstrap=10_000, seed=seed)
    assert accuracy is not None
    return {
        "pairs": len(delta_P),
        "accuracy": {"value": accuracy.value, "low": accuracy.low, "high": accuracy.high, "confidence": confidence},
        "loss": float(compute_bradley_terry_loss(torch.from_numpy(chosen_P), torch.from_numpy(rejected_P)).mean()),
        "rewards": {"mean": float(rewards_P2.mean()), "std": float(rewards_P2.std()), "margin": float(delta_P.mean())},
        "length_bias": measure_length_bias(chosen_P, rejected_P, *tokens_P2.T),
        "calibration": measure_calibration(delta_P),
    }
