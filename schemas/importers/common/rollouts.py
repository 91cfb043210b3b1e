"""Iterations of reinforcement learning: completions, groups, mini-batches and steps of other tools."""

import math

from schemas.importers.common.draft import StageDraft
from schemas.importers.common.job import Job, count_rows
from schemas.importers.common.optimisation import end_in_warmup

UNKNOWN_STEPS = 100
"""Iterations of a recipe where the number of prompts is unknown."""


def put_rollouts(stage: StageDraft, completions: int, group: int, per_update: int, source: str) -> None:
    """Write completions per iteration, completions per prompt, and optimiser steps per pass."""
    whole_groups = max(1, math.ceil(completions / group)) * group
    stage.put("generation_batch_size", whole_groups, source)
    stage.put("num_generations", group, source)
    batches = max(1, round(whole_groups / max(1, per_update)))
    if batches > 1:
        stage.put("num_mini_batches", min(batches, whole_groups // group), source)


def put_iterations(
    job: Job, stage: StageDraft, steps: int | None, epochs: float, steps_key: str, epochs_key: str, updates: int
) -> None:
    """Write the number of iterations: from optimiser steps, `updates` of which are one iteration, or from epochs."""
    leaves = job.leaves
    if steps is not None and steps > 0:
        iterations = max(1, math.ceil(steps / max(1, updates)))
        note = f"{steps} optimiser steps, {updates} per iteration" if updates > 1 else ""
        stage.put("max_steps", iterations, steps_key)
        leaves.account(steps_key, "mapped", f"{stage.name}.max_steps: {iterations} iterations {note}".strip())
        leaves.harmless(epochs_key, f"{steps_key} comes before it")
        end_in_warmup(stage)
        return
    leaves.harmless(steps_key, "no number of steps: the epochs count")
    prompts = stage.get("generation_batch_size", 64) // stage.get("num_generations", 8)
    rows = count_rows(job, stage.get("prompts"))
    if rows:
        iterations = max(1, math.ceil(epochs * rows / prompts))
        stage.put("max_steps", iterations, f"{epochs_key}: {epochs:g} × {rows} rows / {prompts} prompts per iteration")
        leaves.account(epochs_key, "mapped", f"{stage.name}.max_steps: {iterations} = {epochs:g} × {rows} / {prompts}")
    else:
        stage.put("max_steps", UNKNOWN_STEPS, f"{epochs_key} needs the number of rows")
        advice = f"the number of rows is unknown: set stages.{stage.name}.max_steps to {epochs:g} × rows / {prompts}"
        if leaves.has(epochs_key):
            leaves.account(epochs_key, "not supported", advice)
        else:
            leaves.state_default(epochs_key, epochs, advice)
    end_in_warmup(stage)
