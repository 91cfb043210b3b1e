"""Numbers over several runs and worlds, as in Agarwal et al. (2021). Shapes: R runs, W worlds, S resamples."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict

import numpy as np

from learning.data.rows import Row
from learning.evaluation.evaluation import ALL
from learning.evaluation.statistics import Estimate


def compute_iqm(score_RW: np.ndarray) -> float:
    """Return the mean of the middle half of all scores: the lowest and the highest quarter are left out.

    A quarter is rounded down to whole scores.
    """
    return float(_iqm(score_RW.reshape(1, -1))[0])


def _iqm(score_SX: np.ndarray) -> np.ndarray:
    left_out = score_SX.shape[1] // 4
    ordered_SX = np.sort(score_SX, axis=1)
    return ordered_SX[:, left_out : score_SX.shape[1] - left_out].mean(1)


def estimate_iqm(score_RW: np.ndarray, *, confidence: float, num_bootstrap: int, seed: int) -> Estimate:
    """Return the interquartile mean with its interval by the stratified bootstrap.

    In a resample each world has as many runs as before, drawn with replacement from its own: what varies is which seeds
    were run, not which worlds.
    """
    runs, worlds = score_RW.shape
    rng = np.random.default_rng(seed)
    drawn_SRW = rng.integers(runs, size=(num_bootstrap, runs, worlds))
    resampled_SX = score_RW[drawn_SRW, np.arange(worlds)].reshape(num_bootstrap, -1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(_iqm(resampled_SX), [tail, 1 - tail])
    return Estimate(compute_iqm(score_RW), float(low), float(high), runs * worlds)


def group_runs(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the models that differ in `seed=` alone, those of a matrix, under the name with `seed=*`; two at least."""
    groups: dict[str, list[str]] = {}
    for name in names:
        shared = re.sub(r"(?<=[@,])seed=[^,]*", "seed=*", name)
        if shared != name:
            groups.setdefault(shared, []).append(name)
    return {shared: members for shared, members in groups.items() if len(members) > 1}


def make_run_lines(
    measured: Mapping[str, Mapping[str, np.ndarray]], *, confidence: float, num_bootstrap: int, seed: int
) -> list[Row]:
    """Return a line `iqm_<metric>` for every metric and group of runs, from the values by metric and model.

    A run counts with its mean over the starts.
    """
    lines = []
    for metric, of_model in measured.items():
        for shared, members in group_runs(of_model).items():
            score_RW = np.array([[of_model[name].mean()] for name in members])
            estimate = estimate_iqm(score_RW, confidence=confidence, num_bootstrap=num_bootstrap, seed=seed)
            lines.append({"model": shared, "family": ALL, "metric": f"iqm_{metric}", **asdict(estimate)})
    return lines
