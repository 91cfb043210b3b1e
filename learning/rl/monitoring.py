"""Metrics of an RL iteration, their curves, and watches over them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from statistics import stdev
from typing import Any

from learning.batch.batch import Batch
from learning.samples.sample import Sample
from schemas.training import Watch

Metrics = dict[str, float]
OVER = {"generator_idle_share": "generator_seconds"}
"""Shares of a time, each with the metric that holds that time: their mean is over time, not over iterations."""


class Curves:
    """Metrics averaged over the iterations between two lines; `last` are those of the last iteration."""

    def __init__(self, log: Callable[..., None], every: int, total: int) -> None:
        self.log, self.every, self.total = log, every, total
        self.lines: list[Metrics] = []
        self.window: list[Metrics] = []
        self.last: Metrics = {}

    def add(self, step: int, metrics: Metrics) -> None:
        """Add the metrics of an iteration (0-based); log a line when one is due."""
        self.window, self.last = [*self.window, metrics], metrics
        if (step + 1) % self.every == 0 or step + 1 == self.total:
            self.close(step)

    def close(self, step: int) -> None:
        """Log the line of the iterations since the last one, if there were any."""
        if not self.window:
            return
        keys = sorted({key for metrics in self.window for key in metrics})
        self.lines.append({"step": step + 1, **{key: mean(key, self.window) for key in keys}})
        self.window = []
        self.log(**self.lines[-1])

    def to_json(self) -> dict[str, list[Metrics] | Metrics]:
        """Return them as plain values."""
        return {"lines": self.lines, "window": self.window, "last": self.last}

    def load(self, values: Mapping[str, Any]) -> None:
        """Restore what `to_json` returned, and log its lines again."""
        self.lines, self.window, self.last = values["lines"], values["window"], values["last"]
        for line in self.lines:
            self.log(**line)


def mean(key: str, iterations: Sequence[Metrics]) -> float:
    """Return the mean of a metric over those iterations that have it."""
    own = [metrics for metrics in iterations if key in metrics]
    weights = [metrics.get(OVER.get(key, ""), 1.0) for metrics in own]
    if not (total := sum(weights)):
        return sum(metrics[key] for metrics in own) / len(own)
    return sum(weight * metrics[key] for weight, metrics in zip(weights, own, strict=True)) / total


class Watchdogs:
    """Counts, for every watch, the iterations in a row outside its band."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.watches = list(watches)
        self.outside = [0] * len(self.watches)

    @property
    def is_good(self) -> bool:
        """Whether every watched metric was inside its band when last seen."""
        return not any(self.outside)

    def look(self, metrics: Mapping[str, float]) -> list[tuple[Watch, str]]:
        """Return the watches that trip now, each with a message; a missing metric changes nothing."""
        tripped = []
        for i, watch in enumerate(self.watches):
            value = metrics.get(watch.metric)
            if value is None:
                continue
            low = watch.min is not None and not value >= watch.min
            high = watch.max is not None and not value <= watch.max
            self.outside[i] = self.outside[i] + 1 if low or high else 0
            if self.outside[i] >= watch.patience:
                bound = f"below {watch.min:g}" if low else f"above {watch.max:g}"
                tripped.append((watch, f"{watch.metric} was {value:.4g}, {bound}, for {self.outside[i]} iteration(s)"))
        return tripped

    def reset(self) -> None:
        """Start counting again, as after a rollback."""
        self.outside = [0] * len(self.watches)

    def to_json(self) -> list[int]:
        """Return the counts as plain values."""
        return list(self.outside)

    def load(self, values: Sequence[int]) -> None:
        """Restore what `to_json` returned."""
        self.outside = list(values)


def describe_samples(samples: Sequence[Sample], trained: Batch, *, episodes: bool = False) -> Metrics:
    """Return metrics of the samples of an iteration: of the plain policy's, where it sampled any."""
    plain = [sample for sample in samples if sample.source == "policy"]
    own = plain or [sample for sample in samples if sample.logprobs is not None]
    ended = [sample for sample in own if sample.finish != "suspended"]
    metrics = describe_rewards(ended)
    if rewards := [sample.reward for sample in ended if sample.reward is not None]:
        metrics["reward_std"] = stdev(rewards) if len(rewards) > 1 else 0.0
    if equal := list_equal_groups(ended):
        metrics["frac_reward_zero_std"] = sum(equal) / len(equal)
    metrics |= describe_turns(own) if episodes else {}
    return metrics | {
        "completions": float(len(samples)),
        "completion_length": measure_length(own),
        "truncated": sum(sample.finish == "length" for sample in own) / max(len(own), 1),
        "unscorable": sum(sample.reward is None for sample in samples) / max(len(samples), 1),
        "trained": trained.num_paths / max(len(samples), 1),
        "broken_logprobs": float(trained.tokens["broken"].sum()),
    }


def describe_rewards(samples: Sequence[Sample]) -> Metrics:
    """Return the mean of each reward over the samples that it scores, and that of their weighted sum."""
    metrics: Metrics = {}
    for name in dict.fromkeys(name for sample in samples for name in sample.scores):
        values = [value for sample in samples if (value := sample.scores.get(name)) is not None]
        if values:
            metrics[f"reward/{name}"] = sum(values) / len(values)
    if rewards := [sample.reward for sample in samples if sample.reward is not None]:
        metrics["reward"] = sum(rewards) / len(rewards)
    return metrics


def measure_length(samples: Sequence[Sample]) -> float:
    """Return the mean number of tokens that the model wrote in each sample."""
    return sum(sum(sample.own) for sample in samples) / max(len(samples), 1)


def list_equal_groups(samples: Iterable[Sample]) -> list[bool]:
    """Return, for each group of at least two samples with a reward, whether their rewards are equal."""
    scored = sorted((sample for sample in samples if sample.reward is not None), key=lambda sample: sample.group)
    groups = ([sample.reward for sample in group] for _, group in groupby(scored, key=lambda sample: sample.group))
    return [len(set(rewards)) == 1 for rewards in groups if len(rewards) > 1]


def describe_turns(samples: Sequence[Sample]) -> Metrics:
    """Return metrics of episodes, per completion.

    `turns` of the model, `env_seconds` that the environment took for them, `failed_turns` that it could not carry out.
    """
    turns, size = [turn for sample in samples for turn in sample.turns], max(len(samples), 1)
    return {
        "turns": sum(sample.num_turns for sample in samples) / size,
        "env_seconds": sum(turn.seconds for turn in turns) / size,
        "failed_turns": sum(not turn.ok for turn in turns) / size,
    }


def describe_staleness(samples: Sequence[Sample], step: int) -> Metrics:
    """Return by how many iterations the weights that sampled the tokens are older; nothing where none are older."""
    own = [sample for sample in samples if sample.logprobs is not None]
    ages = [step - v for s in own for v, mine in zip(s.versions[s.given :], s.own, strict=False) if mine]
    if not any(ages):
        return {}
    return {
        "staleness": sum(ages) / len(ages),
        "staleness_max": float(max(ages)),
        "older_tokens": sum(age > 0 for age in ages) / len(ages),
    }


TIMED = (
    "trainer_wait_seconds",
    "generator_idle_share",
    "generator_seconds",
    "groups_ready",
    "groups_under_way",
    "groups_overlapped",
    "sampled_length",
    "env_seconds",
)
"""Metrics that depend on how fast things are: no two runs agree on them."""
