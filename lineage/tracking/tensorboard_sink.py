"""Curves as event files of TensorBoard: `tensorboard --logdir .posttrain/tensorboard`."""

import shutil
from collections.abc import Sequence

from tensorboardX import SummaryWriter

from lineage.layout import Layout
from lineage.tracking.curve_sinks import CurveLine
from schemas.plan import Step


class TensorBoardSink:
    """One folder per step of a run: `.posttrain/tensorboard/<recipe>/<run>/<step>`."""

    def __init__(self, layout: Layout, recipe: str, run: str, step: Step):
        folder = layout.state / "tensorboard" / recipe / run / step.name
        shutil.rmtree(folder, ignore_errors=True)
        self.writer = SummaryWriter(str(folder))

    def write(self, lines: Sequence[CurveLine]) -> None:
        """Add one scalar per number, with the time at which it was reported."""
        for line in lines:
            for name, value in line.values.items():
                self.writer.add_scalar(name, value, line.at, walltime=line.time)
        self.writer.flush()

    def close(self, *, failed: bool) -> None:
        """Close the event file."""
        self.writer.close()
