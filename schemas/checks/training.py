"""Rules of training stages that a type cannot state: what a group of trainers cannot do."""

from collections.abc import Iterator

from schemas.errors import Problem
from schemas.steps.step_info import StepInfo
from schemas.training import WHOLE_ONLY, Training


def check_training(info: StepInfo, training: Training) -> Iterator[Problem]:
    """Yield what a training stage asks for and its resources cannot give."""
    train = info.stage.resources.train
    if train is not None and train.strategy == "fsdp2" and train.workers > 1 and training.optim in WHOLE_ONLY:
        message = f"{training.optim} cannot update weights that are sharded over workers"
        yield info.problem("optim", message, "use `strategy: ddp`, or `optim: adamw`, `lion` or `muon`")
