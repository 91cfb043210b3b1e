"""The loop of supervised training on one weight: which points it logs, and how it continues after a kill."""

from dataclasses import dataclass

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from learning.models.optimize import make_optimizer
from learning.models.sharded_model import Trained
from learning.training.loop import BatchResult, Objective, TrainingLoop, count_steps
from schemas.errors import StepError
from schemas.training import Evaluation, Training
from tasks.context import Spending

EVERY_FIFTH = Evaluation(validation_fraction=0.1, eval_steps=5)


@dataclass
class Distance(Objective):
    """(w − 3)²; remembers how many batches it has seen."""

    model: Trained

    def backward(self, step):
        loss = (self.model.model.weight - 3).square().sum()
        loss.backward()
        self.state["batches"] = self.state.get("batches", 0) + 1
        return BatchResult({"loss": float(loss.detach())}, tokens=step + 1)

    def evaluate(self, step):
        distance = float((self.model.model.weight - 0.3).square().sum().detach())
        near = -float((self.model.model.weight - 0.5).square().sum().detach())
        return {"eval_batches": float(self.state["batches"]), "eval_loss": distance, "eval_accuracy": near}


class Reports:
    """Keeps what a loop reports; raises at a step if it is told to."""

    def __init__(self, stop_at=None):
        self.stop_at, self.points, self.spent, self.steps = stop_at, [], [], []
        self.spending = Spending()

    def log(self, step, **values):
        self.points.append((step, {name: v for name, v in values.items() if name != "tokens_per_second"}))

    def spend(self, tokens):
        self.spent.append(tokens)
        self.spending.tokens += tokens

    def progress(self, step, total, **values):
        self.steps.append(step)
        if step == self.stop_at:
            raise KeyboardInterrupt


@pytest.fixture
def make_loop(tmp_path):
    def make(checkpoints, reports, evaluation=EVERY_FIFTH, **settings):
        settings = Training(learning_rate=0.1, save_steps=2, logging_steps=3, max_grad_norm=None, **settings)
        module = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(module.weight)
        model = Trained(module)
        optimizer = make_optimizer(module, settings)
        return TrainingLoop(settings, 7, model, optimizer, Distance(model), reports, tmp_path / checkpoints, evaluation)

    return make


def test_points_are_means_since_the_last_and_held_out_rows_are_looked_at_when_due(make_loop):
    reports = Reports()
    make_loop("whole", reports).run()
    # Adam's first steps on a gradient of one sign are close to the learning rate: w is 0, 0.1, 0.2 …
    assert [step for step, _ in reports.points] == [3, 5, 6, 7]
    first = reports.points[0][1]
    assert first["loss"] == pytest.approx((9 + 2.9**2 + 2.8**2) / 3, abs=1e-2)
    assert first["learning_rate"] == pytest.approx(0.1)
    assert first["grad_norm"] == pytest.approx(2 * (3 + 2.9 + 2.8) / 3, abs=1e-2)
    assert {step: point.get("eval_batches") for step, point in reports.points} == {3: None, 5: 5, 6: None, 7: 7}
    assert reports.spent == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("killed", "kept"), [(1, 0), (4, 2), (5, 4), (7, 6)])
def test_a_killed_loop_continues_from_its_checkpoint_bit_identical(make_loop, killed, kept):
    whole = Reports()
    finished = make_loop("whole", whole)
    finished.run()
    with pytest.raises(KeyboardInterrupt):
        make_loop("broken", Reports(stop_at=killed)).run()
    reports = Reports()
    resumed = make_loop("broken", reports)
    resumed.run()
    assert reports.steps == list(range(kept + 1, 8))
    assert reports.points == whole.points
    assert torch.equal(resumed.model.model.weight, finished.model.model.weight)
    assert resumed.objective.state == finished.objective.state == {"batches": 7}
    assert resumed.tokens == finished.tokens == 28
    assert reports.spending.total().tokens == whole.spending.total().tokens == 28
    assert reports.spending.earlier.tokens == sum(range(1, kept + 1))


def test_passes_over_the_data_or_max_steps_give_the_number_of_steps():
    assert count_steps(-1, 1.5, 5) == 8
    assert count_steps(3, 1.5, 5) == 3


BEST_OF_ALL = Evaluation(validation_fraction=0.1, eval_steps=1, load_best_model_at_end=True)
STOPPED = BEST_OF_ALL.model_copy(update={"early_stopping_patience": 2})
"""The weight grows by 0.1 a step, and the held-out loss is lowest at 0.3: after the third step."""


@pytest.mark.parametrize(("evaluation", "steps"), [(BEST_OF_ALL, 7), (STOPPED, 5)])
def test_the_best_weights_are_published_and_training_stops_when_patience_ends(make_loop, evaluation, steps):
    reports = Reports()
    loop = make_loop("best", reports, evaluation)
    loop.run()
    assert reports.steps == list(range(1, steps + 1))
    assert (loop.steps_taken, loop.published.step) == (steps, 3)
    assert float(loop.model.model.weight.detach()) == pytest.approx(0.3, abs=0.01)
    last = make_loop("last", Reports(), evaluation.model_copy(update={"load_best_model_at_end": False}))
    last.run()
    assert last.published.step == steps
    assert float(last.model.model.weight.detach()) == pytest.approx(0.1 * steps, abs=0.03)


class WithAccuracy(Evaluation):
    """Evaluations that have a second metric, which is highest at 0.5: after the fifth step."""

    evaluation_metrics = ("eval_loss", "eval_accuracy", "eval_other")


@pytest.mark.parametrize(
    ("choice", "published", "steps"),
    [
        ({"metric_for_best_model": "eval_accuracy"}, 5, 7),
        ({"metric_for_best_model": "eval_accuracy", "early_stopping_patience": 1}, 5, 6),
        ({"metric_for_best_model": "eval_accuracy", "greater_is_better": False}, 1, 7),
        ({"greater_is_better": True}, 7, 7),
        ({"metric_for_best_model": "eval_accuracy", "greater_is_better": False, "early_stopping_patience": 2}, 1, 3),
    ],
)
def test_the_best_weights_are_those_of_a_named_metric_and_its_direction(make_loop, choice, published, steps):
    evaluation = WithAccuracy(validation_fraction=0.1, eval_steps=1, load_best_model_at_end=True, **choice)
    loop = make_loop("best", Reports(), evaluation)
    loop.run()
    assert (loop.steps_taken, loop.published.step) == (steps, published)
    assert float(loop.model.model.weight.detach()) == pytest.approx(0.1 * published, abs=0.01)


def test_a_metric_that_the_held_out_rows_do_not_give_ends_the_step(make_loop):
    evaluation = WithAccuracy(
        validation_fraction=0.1, eval_steps=2, early_stopping_patience=1, metric_for_best_model="eval_other"
    )
    with pytest.raises(StepError, match="give no `eval_other`; they give eval_accuracy, eval_batches, eval_loss"):
        make_loop("best", Reports(), evaluation).run()


@pytest.mark.parametrize("killed", [1, 2, 3, 4, 5])
def test_a_killed_loop_publishes_the_same_weights(make_loop, killed):
    whole = make_loop("whole", Reports(), STOPPED)
    whole.run()
    with pytest.raises(KeyboardInterrupt):
        make_loop("broken", Reports(stop_at=killed), STOPPED).run()
    reports = Reports()
    resumed = make_loop("broken", reports, STOPPED)
    resumed.run()
    assert torch.equal(resumed.model.model.weight, whole.model.model.weight)
    assert [p.step for p in resumed.curve] == [p.step for p in whole.curve] == [1, 2, 3, 4, 5]


def test_best_weights_that_are_gone_are_an_error(make_loop, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make_loop("broken", Reports(stop_at=5), STOPPED).run()
    for file in (tmp_path / "broken" / "best").rglob("tensors.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(StepError, match="the weights of step 3 are missing or damaged"):
        make_loop("broken", Reports(), STOPPED).run()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"eval_steps": 2}, "eval_steps: no rows are held out; set `validation_fraction`"),
        ({"validation_fraction": 0.1, "early_stopping_patience": 2}, "early_stopping_patience: compares evaluations"),
        ({"load_best_model_at_end": True}, "load_best_model_at_end: compares evaluations during training"),
        ({"greater_is_better": True}, "greater_is_better: nothing compares evaluations; add `load_best_model_at_end`"),
        ({"metric_for_best_model": "loss"}, "evaluations have no metric `loss`; did you mean `eval_loss`?"),
    ],
)
def test_a_choice_without_evaluations_is_refused(settings, problem):
    with pytest.raises(ValidationError, match=problem):
        Evaluation(**settings)
