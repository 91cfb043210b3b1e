"""The loop of supervised training on one weight: which points it logs, and how it continues after a kill."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from learning.models.optimize import make_optimizer
from learning.models.sharded_model import Trained
from learning.training.loop import BatchResult, Objective, TrainingLoop, count_steps
from schemas.training import Training


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
        return {"eval_batches": float(self.state["batches"])}


class Reports:
    """Keeps what a loop reports; raises at a step if it is told to."""

    def __init__(self, stop_at=None):
        self.stop_at, self.points, self.spent, self.steps = stop_at, [], [], []

    def log(self, step, **values):
        self.points.append((step, {name: v for name, v in values.items() if name != "tokens_per_second"}))

    def spend(self, tokens):
        self.spent.append(tokens)

    def progress(self, step, total, **values):
        self.steps.append(step)
        if step == self.stop_at:
            raise KeyboardInterrupt


@pytest.fixture
def make_loop(tmp_path):
    def make(checkpoints, reports, **settings):
        settings = Training(learning_rate=0.1, save_steps=2, logging_steps=3, max_grad_norm=None, **settings)
        module = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(module.weight)
        model = Trained(module)
        optimizer = make_optimizer(module, settings)
        return TrainingLoop(settings, 7, model, optimizer, Distance(model), reports, tmp_path / checkpoints, 5)

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


def test_passes_over_the_data_or_max_steps_give_the_number_of_steps():
    assert count_steps(-1, 1.5, 5) == 8
    assert count_steps(3, 1.5, 5) == 3
