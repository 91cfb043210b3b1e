"""Metrics of control policies: from returns (P starts, N environments) to one value per start."""

from typing import Annotated

import numpy as np
from pydantic import Field

from learning.control.reports.fronts import compute_hypervolume
from schemas.errors import StepError


def mean_return(score_PN: np.ndarray) -> np.ndarray:
    """Mean sum of an episode's rewards."""
    return score_PN.mean(1)


def normalised_return(score_PN: np.ndarray, *, random: float, expert: float) -> np.ndarray:
    """Return on a scale on which a random policy's is 0 and an expert's 100 (Fu et al. 2020)."""
    return 100 * (score_PN.mean(1) - random) / (expert - random)


def success(score_PN: np.ndarray, *, threshold: float) -> np.ndarray:
    """Share of episodes whose return reaches the threshold."""
    return (score_PN >= threshold).mean(1)


def worst_return(score_PN: np.ndarray) -> np.ndarray:
    """Return in the environment, of `env` and `other_envs`, whose mean over all starts is the lowest."""
    return score_PN[:, score_PN.mean(0).argmin()]


def hypervolume(score_PN: np.ndarray, *, reference: list[float]) -> np.ndarray:
    """Volume above `reference` that a set of policies dominates; environments are policies, each with all objectives.

    As many environments in a row as `reference` has numbers are the objectives of one policy, as `weighted` makes them.
    """
    return np.array([compute_hypervolume(point_MK, reference) for point_MK in split_objectives(score_PN, reference)])


def best_weighted_sum(score_PN: np.ndarray, *, weights: Annotated[list[float], Field(min_length=1)]) -> np.ndarray:
    """Highest weighted sum of objectives of a policy in the set; environments are those of `hypervolume`."""
    return (split_objectives(score_PN, weights) @ np.array(weights)).max(1)


def split_objectives(score_PN: np.ndarray, objectives: list[float]) -> np.ndarray:
    """Return returns (P, policies, objectives). Raise StepError if environments are left over."""
    if score_PN.shape[1] % len(objectives):
        raise StepError(
            f"metric: {score_PN.shape[1]} environments are no whole policies of {len(objectives)} objectives"
        )
    return score_PN.reshape(len(score_PN), -1, len(objectives))
