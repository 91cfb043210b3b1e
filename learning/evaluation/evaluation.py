"""From the scores of models on the same problems to a table and comparisons.

Shapes: P problems, N samples of each. Scores are (P, N), NaN where a sample could not be scored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from learning.data.rows import Row
from learning.evaluation.statistics import estimate_difference, estimate_mean
from learning.lookup import bind
from schemas.errors import StepError
from schemas.evaluation_slots import ANSWER_LOGPROBS, REPORTED, MetricUse
from schemas.gates import Gate
from schemas.stages.evaluate import Evaluate
from schemas.use import Use

ALL = "all"
"""Family name of the lines over all problems."""


class Compared(Protocol):
    """The settings of a stage that compares models: what tables, comparisons and gates read of them."""

    @property
    def models(self) -> Mapping[str, str]:
        """Reference of every model in the table, by its name."""
        ...

    @property
    def against(self) -> Mapping[str, str]:
        """Reference of every further model that gates compare with."""
        ...

    @property
    def metrics(self) -> Sequence[MetricUse]:
        """Metrics in the table."""
        ...

    @property
    def threshold(self) -> float:
        """Smallest score that counts as correct."""
        ...

    @property
    def confidence(self) -> float:
        """Confidence level of all intervals."""
        ...

    @property
    def num_bootstrap(self) -> int:
        """Number of resamples in the paired bootstrap."""
        ...

    @property
    def gate(self) -> Sequence[Gate]:
        """Conditions on the results."""
        ...


@dataclass(frozen=True)
class Comparison:
    """The settings of a stage that scores its models without sampling, as `Compared` has them."""

    models: Mapping[str, str]
    metrics: Sequence[MetricUse]
    confidence: float
    num_bootstrap: int
    gate: Sequence[Gate]
    threshold: float
    against: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """What was measured: for each model in order its scores (P, N); the family of each problem, if it has one.

    `texts` are the completions, (P, N). `repeats` are further evaluations of some models with other sampling seeds, and
    `repeated_texts` their completions.
    """

    models: Mapping[str, np.ndarray]
    families: Sequence[str | None]
    repeats: Sequence[Mapping[str, np.ndarray]] = ()
    texts: Mapping[str, np.ndarray] = field(default_factory=dict)
    repeated_texts: Sequence[Mapping[str, np.ndarray]] = ()
    answer_logprobs: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Mean log-probability per token of every problem's answer, (P,), by model; empty if no metric requests it."""
    reported: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    """What libraries' tasks report of each problem, {metric: (P,)}, by model."""
    first: str = ""
    """The model that others are compared with by metrics; empty: the first there is."""

    def again(self) -> "Iterator[Scores]":
        """Return the repeats, each as an evaluation of its own."""
        first = self.first or next(iter(self.models))
        for models, texts in zip_longest(self.repeats, self.repeated_texts, fillvalue={}):
            same = {"answer_logprobs": self.answer_logprobs, "reported": self.reported, "first": first}
            yield Scores(models, self.families, texts=texts, **same)

    def make_columns(self, model: str, threshold: float) -> dict[str, Any]:
        """Return the columns that a metric may ask for of a model, by name."""
        score_PN, first = self.models[model], self.first or next(iter(self.models))
        # The slack forgives the rounding of a weighted sum.
        correct_PN = np.where(np.isnan(score_PN), np.nan, score_PN >= threshold - 1e-9)
        values: dict[str, Any] = {"correct_PN": correct_PN, "score_PN": score_PN}
        values |= {"first_PN": self.models[first]} if first in self.models else {}
        values |= {ANSWER_LOGPROBS: self.answer_logprobs[model]} if model in self.answer_logprobs else {}
        values |= {REPORTED: self.reported.get(model, {})}
        return values | ({"text_PN": self.texts[model]} if model in self.texts else {})

    def subsets(self) -> dict[str, np.ndarray]:
        """Return problems of each family, and all of them, as boolean (P,); problems may be without a family."""
        names = dict.fromkeys(name for name in self.families if name is not None)
        of_family = {name: np.array([family == name for family in self.families]) for name in names}
        return {ALL: np.ones(len(self.families), bool), **of_family}


def make_metric_name(use: Use) -> str:
    """Return name in tables and gates: that of the function and its options: `accuracy`, `pass_at_4`."""
    name = use.use.replace(":", ".").rpartition(".")[2]
    return "_".join([name, *(str(value) for value in use.options.values())])


def compute_values(stage: Compared, scores: Scores) -> dict[str, dict[str, np.ndarray]]:
    """Return the value of every problem, by metric and model. Raises StepError when a metric says nothing at all."""
    by_metric: dict[str, dict[str, np.ndarray]] = {}
    for i, use in enumerate(stage.metrics):
        metric = bind(use, f"metrics.{i}")
        by_metric[make_metric_name(use)] = of_model = {}
        for model in scores.models:
            of_model[model] = np.asarray(metric.ask(0, scores.make_columns(model, stage.threshold)), dtype=float)
            if np.isnan(of_model[model]).all():
                raise StepError(
                    f"metric {make_metric_name(use)}: no value on any problem for {model}; raise num_generations, or "
                    "check that the rewards can score these problems"
                )
    return by_metric


def has_episodes(stage: Evaluate) -> bool:
    """Return whether samples of an evaluation have turns: a model plays in an environment or with other roles."""
    return bool(stage.env or stage.envs or stage.agent or stage.agents or stage.roles)


def make_table(stage: Compared, scores: Scores, seed: int) -> list[Row]:
    """Return one line per model, family and metric: value, low, high, n."""
    how = {"confidence": stage.confidence, "num_bootstrap": stage.num_bootstrap, "seed": seed}
    lines = []
    for metric, of_model in compute_values(stage, scores).items():
        for model, value_P in of_model.items():
            for family, chosen_P in scores.subsets().items():
                if estimate := estimate_mean(value_P[chosen_P], **how):
                    lines.append({"model": model, "family": family, "metric": metric, **asdict(estimate)})
    return lines


def make_comparisons(stage: Compared, scores: Scores, seed: int) -> list[Row]:
    """Return paired differences of each model to every earlier one, and of those that gates compare.

    An evaluation does not know which model was trained from which; reports choose the pairs by lineage.
    """
    how = {"confidence": stage.confidence, "num_bootstrap": stage.num_bootstrap, "seed": seed}
    names = list(stage.models) or ["model"]
    compared = [(gate.model or names[-1], gate.against) for gate in stage.gate]
    compared_models = [(new, old) for new, old in compared if old is not None and old in scores.models]
    earlier = [(new, old) for i, new in enumerate(names) for old in names[:i]]
    lines, measured = [], compute_values(stage, scores)
    for new, old in dict.fromkeys([*earlier, *compared_models]):
        for metric, of_model in measured.items():
            for family, chosen_P in scores.subsets().items():
                difference = estimate_difference(of_model[new][chosen_P], of_model[old][chosen_P], **how)
                if difference:
                    lines.append(
                        {"model": new, "against": old, "family": family, "metric": metric, **asdict(difference)}
                    )
    return lines
