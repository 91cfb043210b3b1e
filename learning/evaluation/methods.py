"""Methods over worlds and seeds from the reports of their runs. Shapes: R runs, W worlds, S resamples."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from learning.data.rows import Row
from learning.evaluation.evaluation import ALL
from learning.evaluation.statistics import Estimate
from schemas.errors import StepError

SEED = re.compile(r"(?:^|(?<=[@,]))seed=([^,@]*),?")
Measure = Callable[[np.ndarray], np.ndarray]
"""From scores (S, R·W) to a number of each resample (S,)."""


def name_method(model: str) -> tuple[str, str]:
    """Return method and seed of a model's name: `algorithm=ppo` and `1` of `cartpole@algorithm=ppo,seed=1`."""
    stage, _, variant = model.partition("@")
    seed = SEED.search(variant)
    method = SEED.sub("", variant).strip(",") if seed else variant
    return method or stage, seed.group(1) if seed else ""


def read_runs(reports: Mapping[str, Path], metric: str) -> dict[str, np.ndarray]:
    """Return the scores (R, W) of every method. Raise StepError if a method has other runs in another world."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for world, folder in reports.items():
        lines: list[Row] = json.loads((folder / "results.json").read_text(encoding="utf-8"))["table"]
        values = {x["model"]: x["value"] for x in lines if x["metric"] == metric and x["family"] == ALL}
        if not values:
            known = ", ".join(dict.fromkeys(line["metric"] for line in lines))
            raise StepError(f"benchmark: the report of {world} has no metric {metric}; it has {known}")
        for model, value in values.items():
            method, seed = name_method(model)
            runs = found.setdefault(method, {}).setdefault(world, {})
            if seed in runs:
                raise StepError(f"benchmark: {world} has two runs of {method} with the seed {seed or 'of the recipe'}")
            runs[seed] = value
    for method, worlds in found.items():
        seeds = {world: sorted(worlds.get(world, {})) for world in reports}
        if len({tuple(of) for of in seeds.values()}) > 1:
            shown = "; ".join(f"{world}: {', '.join(of) or 'none'}" for world, of in seeds.items())
            raise StepError(f"benchmark: {method} has not the same seeds in all worlds ({shown})")
    return {
        method: np.array([list(dict(sorted(worlds[world].items())).values()) for world in reports]).T
        for method, worlds in found.items()
    }


def normalise(score_RW: np.ndarray, bounds: Sequence[tuple[float, float]] | None) -> np.ndarray:
    """Return scores of which 0 and 1 are the two bounds of each world; without bounds the scores themselves."""
    if bounds is None:
        return score_RW
    low_W, high_W = np.array(bounds, dtype=float).T
    return (score_RW - low_W) / (high_W - low_W)


def compute_iqms(score_SX: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of each row: a quarter, rounded down, is left out at both ends."""
    left_out = score_SX.shape[1] // 4
    return np.sort(score_SX, axis=1)[:, left_out : score_SX.shape[1] - left_out].mean(1)


def estimate(measure: Measure, score_RW: np.ndarray, *, confidence: float, num_bootstrap: int, seed: int) -> Estimate:
    """Return a number of the scores with its interval by the bootstrap over runs, within each world."""
    runs, worlds = score_RW.shape
    drawn_SRW = np.random.default_rng(seed).integers(runs, size=(num_bootstrap, runs, worlds))
    resampled_SX = score_RW[drawn_SRW, np.arange(worlds)].reshape(num_bootstrap, -1)
    low, high = np.quantile(measure(resampled_SX), _tails(confidence))
    return Estimate(float(measure(score_RW.reshape(1, -1))[0]), float(low), float(high), runs * worlds)


def estimate_improvement(
    new_RW: np.ndarray, old_RW: np.ndarray, *, confidence: float, num_bootstrap: int, seed: int
) -> Estimate:
    """Return the probability that a run of `new` is better than one of `old`, averaged over worlds; ties count half."""
    rng = np.random.default_rng(seed)

    def measure(new_SRW: np.ndarray, old_SRW: np.ndarray) -> np.ndarray:
        wins = np.sign(new_SRW[:, :, None] - old_SRW[:, None]) / 2 + 0.5
        return wins.mean((1, 2, 3))

    def resample(score_RW: np.ndarray) -> np.ndarray:
        runs, worlds = score_RW.shape
        return score_RW[rng.integers(runs, size=(num_bootstrap, runs, worlds)), np.arange(worlds)]

    low, high = np.quantile(measure(resample(new_RW), resample(old_RW)), _tails(confidence))
    value = float(measure(new_RW[None], old_RW[None])[0])
    return Estimate(value, float(low), float(high), len(new_RW) * new_RW.shape[1])


def _tails(confidence: float) -> list[float]:
    return [(1 - confidence) / 2, (1 + confidence) / 2]


def make_method_lines(
    scores: Mapping[str, np.ndarray], worlds: list[str], metric: str, **how: float | int
) -> list[Row]:
    """Return a line per method for the interquartile mean and the mean over all worlds, and the mean of each world.

    With two methods or more, also the probability that each is better than the first.
    """
    lines: list[Row] = []

    def add(method: str, name: str, family: str, estimated: Estimate) -> None:
        lines.append({"model": method, "family": family, "metric": name, **asdict(estimated)})

    options = {"confidence": float(how["confidence"]), "num_bootstrap": int(how["num_bootstrap"])}
    for method, score_RW in scores.items():
        add(method, f"iqm_{metric}", ALL, estimate(compute_iqms, score_RW, seed=int(how["seed"]), **options))
    for method, score_RW in scores.items():
        add(method, metric, ALL, estimate(_mean, score_RW, seed=int(how["seed"]), **options))
        for w, world in enumerate(worlds):
            add(method, metric, world, estimate(_mean, score_RW[:, [w]], seed=int(how["seed"]), **options))
    first = next(iter(scores))
    for method in list(scores)[1:]:
        better = estimate_improvement(scores[method], scores[first], seed=int(how["seed"]), **options)
        add(method, f"better_than_{first}", ALL, better)
    return lines


def _mean(score_SX: np.ndarray) -> np.ndarray:
    return score_SX.mean(1)
