"""The loop of supervised training: resume, step, log, checkpoint.

The kinds sft, preference and reward_model differ in what a step computes: each gives the loop an `Objective`. A step
that was killed continues from its last checkpoint with bit-identical results, because the order of the data is a
function of the seed and the step, and a checkpoint holds everything else.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from learning.models.checkpoint import (
    Saved,
    get_trained_weights,
    load_latest,
    load_training,
    load_weights,
    save_checkpoint,
    save_training,
)
from learning.models.optimize import clip_gradients, learning_rate_at
from learning.models.sharded_model import Trained
from schemas.errors import StepError
from schemas.training import Evaluation, Training

BEST = "best"
"""Folder of the weights of the best evaluation on held-out rows, beside the checkpoints."""


class Reporter(Protocol):
    """Receives the metrics, the progress and the token count of a step (`tasks.context.Context`)."""

    @property
    def spending(self) -> Saved:
        """Return what the step has spent; checkpoints keep it."""
        ...

    def log(self, step: int, **values: float) -> None:
        """Add one point to the curves."""
        ...

    def spend(self, tokens: int) -> None:
        """Count tokens against the recipe's budget."""
        ...

    def progress(self, step: int, total: int, **values: float) -> None:
        """Report how far the step is."""
        ...


@dataclass(frozen=True)
class BatchResult:
    """Metrics of one batch, `loss` among them, and the number of its tokens."""

    metrics: dict[str, float]
    tokens: int


@dataclass(kw_only=True)
class Objective(ABC):
    """What one kind of training computes in an optimiser step."""

    state: dict[str, Any] = field(default_factory=dict)
    """What it remembers between steps, as JSON; checkpoints keep it."""

    @abstractmethod
    def backward(self, step: int) -> BatchResult:
        """Add the gradient of a step (0-based) to the model and return the metrics of its batch."""

    def evaluate(self, step: int) -> dict[str, float]:
        """Return metrics of held-out rows after a step, named as the curves name them; empty if none are held out."""
        return {}


@dataclass(frozen=True)
class StepRecord:
    """Metrics, tokens and seconds of one optimiser step."""

    metrics: dict[str, float]
    tokens: int
    seconds: float


@dataclass(frozen=True)
class CurvePoint:
    """Mean metrics of the optimiser steps since the point before; `step` counts from 1."""

    step: int
    metrics: dict[str, float]


@dataclass
class TrainingLoop:
    """Trains one model; `curve`, `window` (steps since the last point) and `tokens` are what it has reported so far."""

    settings: Training
    total_steps: int
    model: Trained
    optimizer: torch.optim.Optimizer
    objective: Objective
    reporter: Reporter
    checkpoints: Path
    evaluation: Evaluation = field(default_factory=Evaluation)
    curve: list[CurvePoint] = field(default_factory=list)
    window: list[StepRecord] = field(default_factory=list)
    tokens: int = 0

    def run(self) -> None:
        """Train until `total_steps` or early stopping; continue from the latest checkpoint if there is one."""
        keeps_best = self.evaluation.load_best_model_at_end
        for step in range(self.resume(), self.total_steps):
            self.train_step(step)
            is_best = keeps_best and self.best is not None and self.best.step == step + 1
            if is_best:
                weights = get_trained_weights(self.model.model)
                save_checkpoint(self.checkpoints / BEST, step + 1, weights, None, self.model.group)
            if self.has_stopped_early or step + 1 == self.total_steps:
                break
            # A checkpoint follows the best weights at once, so that it never refers to weights that were replaced.
            if is_best or (step + 1) % self.settings.save_steps == 0:
                self.save(step + 1)
        if keeps_best:
            self.restore_best()

    @property
    def evaluated(self) -> list[CurvePoint]:
        """Return the points of the curve that have the metric by which evaluations are compared."""
        return [point for point in self.curve if self.evaluation.metric_for_best_model in point.metrics]

    @property
    def best(self) -> CurvePoint | None:
        """Return the first of the points with the best evaluation on held-out rows; None without evaluations."""
        metric, greater = self.evaluation.metric_for_best_model, self.evaluation.greater_is_better
        if greater is None:
            greater = not metric.startswith("eval_loss")

        def rank(point: CurvePoint) -> float:
            value = point.metrics[metric] if greater else -point.metrics[metric]
            return -math.inf if math.isnan(value) else value

        return max(self.evaluated, key=rank, default=None)

    @property
    def has_stopped_early(self) -> bool:
        """Return whether as many evaluations as the patience allows followed the best one."""
        patience, best = self.evaluation.early_stopping_patience, self.best
        return patience is not None and best is not None and len(self.evaluated) > self.evaluated.index(best) + patience

    @property
    def steps_taken(self) -> int:
        """Return the number of optimiser steps taken at the end."""
        return self.curve[-1].step

    @property
    def published(self) -> CurvePoint:
        """Return the point of the curve that belongs to the final weights."""
        best = self.best if self.evaluation.load_best_model_at_end else None
        return best or self.curve[-1]

    def restore_best(self) -> None:
        """Load the weights of the best evaluation; raise StepError if they are missing or damaged."""
        step, weights = self.published.step, get_trained_weights(self.model.model)

        def like(name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
            return weights.get(name)

        latest = load_latest(self.checkpoints / BEST, step, like=like, group=self.model.group)
        if latest is None or latest[0] != step:
            raise StepError(
                f"load_best_model_at_end: the weights of step {step} are missing or damaged; run the stage with --fresh"
            )
        load_weights(weights, latest[1])

    def train_step(self, step: int) -> None:
        """Take one optimiser step and report its metrics."""
        started = time.perf_counter()
        learning_rate = learning_rate_at(self.settings, step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.objective.backward(step)
        grad_norm = clip_gradients(self.model.model, self.settings.max_grad_norm)
        self.optimizer.step()
        metrics = {**batch.metrics, "grad_norm": grad_norm, "learning_rate": learning_rate}
        self.report(step, StepRecord(metrics, batch.tokens, time.perf_counter() - started))

    def report(self, step: int, record: StepRecord) -> None:
        """Count the tokens, report progress, and add a point to the curve when one is due."""
        self.tokens += record.tokens
        self.reporter.spend(record.tokens)
        self.window.append(record)
        is_last = step + 1 == self.total_steps
        every = self.evaluation.eval_steps
        eval_due = is_last or (every is not None and (step + 1) % every == 0)
        if eval_due or (step + 1) % self.settings.logging_steps == 0:
            held_out = self.objective.evaluate(step) if eval_due else {}
            self.require_metric(held_out)
            self.curve.append(CurvePoint(step + 1, {**average_steps(self.window), **held_out}))
            self.window = []
            self.log(self.curve[-1])
        speed = record.tokens / record.seconds
        self.reporter.progress(step + 1, self.total_steps, loss=record.metrics["loss"], tokens_per_second=speed)

    def require_metric(self, held_out: Mapping[str, float]) -> None:
        """Raise StepError if an evaluation lacks the metric by which evaluations are compared."""
        metric = self.evaluation.metric_for_best_model
        compares = self.evaluation.load_best_model_at_end or self.evaluation.early_stopping_patience is not None
        if compares and held_out and metric not in held_out:
            has = ", ".join(sorted(held_out))
            raise StepError(f"metric_for_best_model: the held-out rows give no `{metric}`; they give {has}")

    def log(self, point: CurvePoint) -> None:
        """Write one point of the curve."""
        self.reporter.log(point.step, **point.metrics)

    def count_trained(self) -> int:
        """Return the number of trained parameters."""
        return sum(parameter.numel() for parameter in get_trained_weights(self.model.model).values())

    def save(self, step: int) -> None:
        """Write a checkpoint after `step` optimiser steps."""
        state = {
            "curve": [asdict(point) for point in self.curve],
            "window": [asdict(record) for record in self.window],
            "tokens": self.tokens,
            "spending": self.reporter.spending.to_json(),
            "objective": self.objective.state,
        }
        weights = get_trained_weights(self.model.model)
        save_training(self.checkpoints, step, weights, self.optimizer, state, self.model.group)

    def resume(self) -> int:
        """Restore the latest checkpoint and return the step to continue at; 0 if there is none."""
        checkpoint = load_training(
            self.checkpoints, get_trained_weights(self.model.model), self.optimizer, self.model.group
        )
        if checkpoint is None:
            return 0
        step, state = checkpoint
        self.curve = [CurvePoint(**point) for point in state["curve"]]
        self.window = [StepRecord(**record) for record in state["window"]]
        self.tokens = state["tokens"]
        self.reporter.spending.load(state["spending"])
        self.objective.state = state["objective"]
        for point in self.curve:
            self.log(point)
        return step


def average_steps(window: list[StepRecord]) -> dict[str, float]:
    """Return the mean of each metric over the steps that have it, and the tokens per second of all."""
    names = dict.fromkeys(name for record in window for name in record.metrics)
    values = {name: [record.metrics[name] for record in window if name in record.metrics] for name in names}
    means = {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
    seconds = sum(record.seconds for record in window)
    return {**means, "tokens_per_second": sum(record.tokens for record in window) / seconds}


def count_steps(max_steps: int, num_train_epochs: float, steps_per_epoch: int) -> int:
    """Return the number of optimiser steps: `max_steps`, or if it is -1 that of the passes over the data."""
    return max_steps if max_steps >= 0 else math.ceil(num_train_epochs * steps_per_epoch)
