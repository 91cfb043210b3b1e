"""Numbers over several runs and worlds, as in Agarwal et al. (2021). Shapes: R runs, W worlds."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict

import numpy as np

from learning.data.rows import Row
from learning.evaluation.evaluation import ALL
from learning.evaluation.methods import compute_iqms, estimate
from learning.evaluation.statistics import Estimate


def compute_iqm(score_RW: np.ndarray) -> float:
    """Return the mean of the middle half of all scores: the lowest and the highest quarter are left out.

    A quarter is rounded down to whole scores.
    """
    return float(compute_iqms(score_RW.reshape(1, -1))[0])


def estimate_iqm(score_RW: np.ndarray, *, confidence: float, num_bootstrap: int, seed: int) -> Estimate:
    """Return the interquartile mean with its interval by the stratified bootstrap.

    In a resample each world has as many runs as before, drawn with replacement from its own: what varies is which seeds
    were run, not which worlds.
    """
    return estimate(compute_iqms, score_RW, confidence=confidence, num_bootstrap=num_bootstrap, seed=seed)


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
