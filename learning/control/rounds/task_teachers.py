"""Teachers that choose the task of the next episode. Shapes: K past episodes, D numbers of a task, C components."""

from functools import lru_cache
from typing import Annotated

import numpy as np
from pydantic import Field

from schemas.errors import StepError

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


def random(low: np.ndarray, high: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Choose any task with the same probability."""
    return rng.uniform(low, high)


def compute_progress(task_KD: np.ndarray, return_K: np.ndarray) -> np.ndarray:
    """Return |return − return of the nearest earlier task| of every episode; 0 for the first."""
    progress_K = np.zeros(len(return_K))
    for k in range(1, len(return_K)):
        nearest = np.linalg.norm(task_KD[:k] - task_KD[k], axis=1).argmin()
        progress_K[k] = abs(return_K[k] - return_K[nearest])
    return progress_K


@lru_cache(maxsize=8)
def _fit_mixture(points: bytes, size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return means (C, D) and covariances of the best mixture of 2 to `most` Gaussians by Akaike's criterion."""
    from sklearn.mixture import GaussianMixture

    point_KD = np.frombuffer(points).reshape(-1, size)
    counts = range(2, min(most, len(point_KD)) + 1)
    fitted = [GaussianMixture(count, covariance_type="full", random_state=0).fit(point_KD) for count in counts]
    best = min(fitted, key=lambda mixture: mixture.aic(point_KD))
    return np.asarray(best.means_), np.asarray(best.covariances_)


def sample_by_progress(mean_CD: np.ndarray, cov_CDD: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a task from a component that is drawn in proportion to its mean progress; evenly if none has any.

    The last number of a component's mean is its progress, the others are those of a task.
    """
    progress_C = np.maximum(mean_CD[:, -1], 0)
    total = progress_C.sum()
    odds_C = progress_C / total if total > 0 else np.full(len(progress_C), 1 / len(progress_C))
    chosen = rng.choice(len(odds_C), p=odds_C)
    return rng.multivariate_normal(mean_CD[chosen], cov_CDD[chosen])[:-1]


def alp_gmm(
    task_KD: np.ndarray,
    return_K: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    rng: np.random.Generator,
    *,
    random_ratio: Share = 0.2,
    fit_every: Annotated[int, Field(ge=3)] = 50,
    components: Annotated[int, Field(ge=2)] = 4,
) -> np.ndarray:
    """Choose tasks where returns change most, by Gaussians over tasks and their progress (Portelas et al. 2019).

    They are fitted again to the newest `fit_every` episodes, after each so many. Until the first fit, and in a share
    `random_ratio` of the episodes, any task is as likely.
    """
    fitted = len(return_K) // fit_every * fit_every
    if rng.random() < random_ratio or not fitted:
        return rng.uniform(low, high)
    progress_K = compute_progress(task_KD[:fitted], return_K[:fitted])
    newest = np.column_stack([task_KD[:fitted], progress_K])[-fit_every:]
    mean_CD, cov_CDD = _fit_mixture(np.ascontiguousarray(newest, float).tobytes(), newest.shape[1], components)
    return np.clip(sample_by_progress(mean_CD, cov_CDD, rng), low, high)


def oracle(
    return_K: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    rng: np.random.Generator,
    *,
    easiest: list[float],
    hardest: list[float],
    mastered: float,
    every: Count = 20,
    stages: Count = 10,
    width: Share = 0.3,
) -> np.ndarray:
    """Choose tasks in a window that moves from the easiest task to the hardest, which an expert names.

    It moves one of `stages` steps on after each `every` episodes whose mean return is `mastered` or more. `width` is
    that of the window, as a share of all tasks. Raise StepError for tasks with another number of numbers.
    """
    if not len(easiest) == len(hardest) == len(low):
        raise StepError(f"teacher oracle: easiest {easiest} and hardest {hardest} must have {len(low)} numbers each")
    passed = 0
    for first in range(0, len(return_K) - every + 1, every):
        passed = min(passed + (return_K[first : first + every].mean() >= mastered), stages)
    middle = np.array(easiest) + passed / stages * (np.array(hardest) - np.array(easiest))
    half = width * (high - low) / 2
    return rng.uniform(np.maximum(middle - half, low), np.minimum(middle + half, high))
