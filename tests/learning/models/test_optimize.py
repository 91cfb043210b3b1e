"""Learning rates in closed form, and equal to those of transformers' schedules."""

import math

import pytest
import torch
from pydantic import ValidationError
from transformers import get_scheduler

from learning.models.optimize import learning_rate_at
from schemas.errors import StepError
from schemas.training import Training

FLOOR = {"lr_scheduler_type": "cosine_with_min_lr", "min_lr_ratio": 0.1}
DECAY = {"num_decay_steps": 7}
WSD = {"lr_scheduler_type": "warmup_stable_decay"}


def rates(total, **settings):
    training = Training(learning_rate=2.0, **settings)
    return [learning_rate_at(training, step, total) / 2 for step in range(total)]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, [1, 1, 1, 1]),
        ({"lr_scheduler_type": "linear"}, [1, 0.75, 0.5, 0.25]),
        ({"lr_scheduler_type": "linear", "warmup_ratio": 0.5}, [0.5, 1, 1, 0.5]),
        ({"lr_scheduler_type": "linear", "warmup_steps": 2}, [0.5, 1, 1, 0.5]),
        ({"lr_scheduler_type": "cosine"}, [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]),
        (FLOOR, [1, 0.1 + 0.9 * (1 + 0.5**0.5) / 2, 0.55, 0.1 + 0.9 * (1 - 0.5**0.5) / 2]),
        ({**WSD, "num_decay_steps": 2, "decay_type": "linear", "warmup_steps": 1}, [1, 1, 1, 0.5]),
        ({**WSD, "num_decay_steps": 4, "decay_type": "1-sqrt"}, [1 - math.sqrt(k / 4) for k in range(4)]),
        ({**WSD, "num_decay_steps": 2, "min_lr_ratio": 0.2}, [1, 1, 1, 0.6]),
        (WSD, [1, 1, 1, 1]),
    ],
)
def test_learning_rates(settings, wanted):
    assert rates(4, **settings) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "settings", "specific"),
    [
        ("linear", {}, {}),
        ("cosine", {}, {}),
        ("cosine_with_min_lr", {"min_lr_ratio": 0.1}, {"min_lr_rate": 0.1}),
        (
            "warmup_stable_decay",
            {"num_decay_steps": 7, "min_lr_ratio": 0.3},
            {"num_decay_steps": 7, "min_lr_ratio": 0.3},
        ),
        (
            "warmup_stable_decay",
            {"num_decay_steps": 7, "decay_type": "1-sqrt"},
            {"num_decay_steps": 7, "decay_type": "1-sqrt"},
        ),
    ],
)
def test_learning_rates_after_the_warmup_are_those_of_transformers(name, settings, specific):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    theirs = get_scheduler(name, optimizer, 5, 40, scheduler_specific_kwargs=specific)
    wanted = []
    for _ in range(40):
        wanted.append(theirs.get_last_lr()[0] / 2)
        optimizer.step()
        theirs.step()
    ours = rates(40, lr_scheduler_type=name, warmup_steps=5, **settings)
    assert ours[5:] == pytest.approx(wanted[5:])
    # transformers begins the warm-up with a learning rate of 0, which wastes a step, and in one case at the floor.
    assert ours[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"warmup_ratio": 0.1, "warmup_steps": 3}, "give `warmup_ratio` or `warmup_steps`, not both"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "cosine_with_min_lr needs `min_lr_ratio`"),
        ({"lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}, "min_lr_ratio: is for .*not cosine; leave it out"),
        ({"num_decay_steps": 3}, "num_decay_steps: is for `lr_scheduler_type: warmup_stable_decay`, not constant"),
        ({"decay_type": "linear"}, "decay_type: is for `lr_scheduler_type: warmup_stable_decay`"),
        (
            {**WSD, "warmup_steps": 6, "num_decay_steps": 5, "max_steps": 10},
            "warmup_steps: 6 and num_decay_steps: 5 are more than the 10 steps of the training",
        ),
        (
            {**WSD, "warmup_ratio": 0.55, "num_decay_steps": 5, "max_steps": 10},
            r"warmup_ratio: 0.55 \(6 steps\) and num_decay_steps: 5 are more than the 10 steps of the training",
        ),
        ({**WSD, "num_decay_steps": 11, "max_steps": 10}, "error, num_decay_steps: 11 are more than the 10 steps"),
    ],
)
def test_schedules_that_contradict_themselves_are_refused(settings, problem):
    with pytest.raises(ValidationError, match=problem):
        Training(**settings)


@pytest.mark.parametrize("settings", [{}, FLOOR, WSD, {"optim": "adafactor"}, {"lr_scheduler_type": "cosine"}])
def test_settings_written_out_with_their_defaults_are_valid_again(settings):
    training = Training(**settings)
    assert Training.model_validate(training.model_dump()) == training


def test_phases_longer_than_the_passes_over_the_data_are_refused():
    with pytest.raises(StepError, match="warmup_steps: 6 are more than the 4 steps of the training"):
        rates(4, warmup_steps=6)
