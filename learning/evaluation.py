"""From the scores of models on the same problems to a table and comparisons.

Shapes: P problems, N samples of each. Scores are (P, N), NaN where a sample could not be scored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from learning.lookup import bind
from learning.statistics import estimate_mean, paired_difference
from schemas.errors import StepError
from schemas.stages.evaluate import Evaluate
from schemas.use import MetricUse

ALL = "all"
"""Family name of the lines over all problems."""


@dataclass(frozen=True)
class Scores:
    """What was measured: for each model in order its scores (P, N); the family of each problem.

    `repeats` are further evaluations of some models with other sampling seeds.
    """

    models: Mapping[str, np.ndarray]
    families: Sequence[str]
    repeats: Sequence[Mapping[str, np.ndarray]] = ()

    def subsets(self) -> dict[str, np.ndarray]:
        """Problems of each family, and all of them, as boolean (P,)."""
        family_P = np.array(self.families)
        names = dict.fromkeys(self.families)
        return {ALL: np.ones(len(family_P), bool), **{name: family_P == name for name in names}}


def metric_name(use: MetricUse) -> str:
    """Name in tables and gates: that of the function and its options: `accuracy`, `pass_at_4`."""
    name = use.use.replace(":", ".").rpartition(".")[2]
    return "_".join([name, *(str(value) for value in use.options.values())])


def values(stage: Evaluate, scores: Scores) -> dict[str, dict[str, np.ndarray]]:
    """Value of every problem, by metric and model. Raises StepError when a metric says nothing at all."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for i, use in enumerate(stage.metrics):
        metric = bind(use, f"metrics.{i}")
        found[metric_name(use)] = of_model = {}
        for model, score_PN in scores.models.items():
            # The slack forgives the rounding of a weighted sum.
            correct_PN = np.where(np.isnan(score_PN), np.nan, score_PN >= stage.threshold - 1e-9)
            of_model[model] = np.asarray(metric(correct_PN), dtype=float)
            if np.isnan(of_model[model]).all():
                raise StepError(
                    f"metric {metric_name(use)}: no value on any problem for {model}; raise num_generations, or see "
                    "whether the rewards can score these problems"
                )
    return found


def table(stage: Evaluate, scores: Scores, seed: int) -> list[dict[str, Any]]:
    """One line per model, family and metric: value, low, high, n."""
    how = {"confidence": stage.confidence, "num_bootstrap": stage.num_bootstrap, "seed": seed}
    lines = []
    for metric, of_model in values(stage, scores).items():
        for model, value_P in of_model.items():
            for family, chosen_P in scores.subsets().items():
                if estimate := estimate_mean(value_P[chosen_P], **how):
                    lines.append({"model": model, "family": family, "metric": metric, **asdict(estimate)})
    return lines


def comparisons(stage: Evaluate, scores: Scores, seed: int) -> list[dict[str, Any]]:
    """Paired differences of each model to the one before it and of those that gates compare."""
    how = {"confidence": stage.confidence, "num_bootstrap": stage.num_bootstrap, "seed": seed}
    names = list(stage.models) or ["model"]
    asked = [(gate.model or names[-1], gate.against) for gate in stage.gate if gate.against in scores.models]
    lines, measured = [], values(stage, scores)
    for new, old in dict.fromkeys([*zip(names[1:], names, strict=False), *asked]):
        for metric, of_model in measured.items():
            for family, chosen_P in scores.subsets().items():
                found = paired_difference(of_model[new][chosen_P], of_model[old][chosen_P], **how)
                if found:
                    lines.append({"model": new, "against": old, "family": family, "metric": metric, **asdict(found)})
    return lines
