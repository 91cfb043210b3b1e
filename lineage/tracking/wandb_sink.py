"""Curves as offline runs of Weights & Biases: `wandb sync .posttrain/wandb/offline-run-*` sends them later."""

import hashlib
import shutil
from collections.abc import Sequence

import wandb  # pyright: ignore[reportMissingImports]  # an extra

from lineage.layout import Layout
from lineage.tracking.curve_sinks import CurveLine
from schemas.plan import Step

STEP = "train/global_step"
"""The x axis that transformers gives to the charts of W&B."""


class WandbSink:
    """One offline run per step of a run, grouped by run; the project is the recipe."""

    def __init__(self, layout: Layout, recipe: str, run: str, step: Step):
        identity = hashlib.sha256(f"{run}/{step.name}".encode()).hexdigest()[:16]
        for earlier in (layout.state / "wandb").glob(f"offline-run-*-{identity}"):
            shutil.rmtree(earlier)
        self.run = wandb.init(
            project=recipe,
            group=run,
            name=f"{run}/{step.name}",
            id=identity,
            job_type=step.kind,
            dir=layout.state,
            mode="offline",
            reinit="create_new",  # steps may run at the same time
            config={**step.settings, "seed": step.seed},
            settings=wandb.Settings(silent=True, console="off", save_code=False, x_disable_stats=True),
        )
        self.run.define_metric("*", step_metric=STEP)

    def write(self, lines: Sequence[CurveLine]) -> None:
        """Add one row per line."""
        for line in lines:
            self.run.log({**line.values, STEP: line.at, "_timestamp": line.time})

    def close(self, *, failed: bool) -> None:
        """End the run, with the exit code 1 if the step failed."""
        self.run.finish(exit_code=int(failed))
