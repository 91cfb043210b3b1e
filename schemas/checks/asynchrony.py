"""Rules for rl stages whose samples are generated while the trainer works.

A rollout function with the parameter `stream` calls rewards in threads, group by group; one with the parameter
`consume` trains on a group before the other groups of the batch are complete.
"""

from collections.abc import Iterator

from schemas.errors import Problem
from schemas.source.tree import join_path
from schemas.stages.rl import Rl
from schemas.steps.slots import Slot
from schemas.steps.step_info import StepInfo
from schemas.use import (
    AdvantageShapingUse,
    AdvantageUse,
    ControllerUse,
    ExtraSamplesUse,
    FilterGroupsUse,
    ImportanceCorrectionUse,
    RewardShapingUse,
    RewardUse,
    RolloutUse,
    TokenMaskUse,
)

SINGLE_THREAD = ("state", "policy", "engine", "sampler")
"""Parameters that only one thread at a time may use."""
CHANGING = ("state", "history", "rng")
"""Parameters whose value changes from one call to the next."""
JUDGING = (FilterGroupsUse, RewardShapingUse, AdvantageUse, AdvantageShapingUse, ImportanceCorrectionUse, TokenMaskUse)


def check_asynchrony(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield the problems of rollout functions that sample while the trainer works."""
    for rollout in info.slots:
        if not isinstance(rollout.use, RolloutUse) or "stream" not in rollout.signature.supplied:
            continue
        yield from _check_rewards(info, rollout)
        yield from _check_staleness(info, rollout)
        yield from _check_steps_per_update(info, stage, rollout)
        if "consume" in rollout.signature.supplied:
            yield from _check_streamed_training(info, stage, rollout)


def _check_rewards(info: StepInfo, rollout: Slot) -> Iterator[Problem]:
    for slot in info.slots:
        shared = [name for name in SINGLE_THREAD if name in slot.signature.supplied]
        if isinstance(slot.use, RewardUse) and shared:
            message = (
                f"`{slot.use.use}` needs `{shared[0]}`, but `{rollout.use.use}` scores several groups at the same time"
            )
            yield info.problem(
                slot.path, message, "use a reward that depends only on the completions, or write `rollout: synchronous`"
            )


def _check_staleness(info: StepInfo, rollout: Slot) -> Iterator[Problem]:
    ahead, limit = rollout.values.get("ahead"), rollout.values.get("max_staleness")
    ahead, lag = ahead if isinstance(ahead, int) else 0, int(rollout.values.get("sync") == "each")
    if isinstance(limit, int) and ahead > limit - lag:
        samples = f"samples requested {ahead} iterations ahead" if ahead else "samples"
        behind = " (workers are one version behind)" if lag else ""
        message = f"{samples} would exceed `max_staleness: {limit}`{behind}"
        yield info.problem(
            join_path(rollout.path, "ahead" if ahead else "sync"), message, "lower `ahead`, or raise `max_staleness`"
        )
    if lag and rollout.values.get("interrupt") is False:
        message = "`sync: each` changes weights during generation, which `interrupt: false` forbids"
        yield info.problem(join_path(rollout.path, "sync"), message, "remove one of the two")


def _check_steps_per_update(info: StepInfo, stage: Rl, rollout: Slot) -> Iterator[Problem]:
    if rollout.values.get("steps_per_update") is not None and stage.resources.rollout is not None:
        message = (
            "`steps_per_update` counts decode steps in the trainer's process and has no effect with `resources.rollout`"
        )
        yield info.problem(join_path(rollout.path, "steps_per_update"), message, "remove one of the two")


def _check_streamed_training(info: StepInfo, stage: Rl, rollout: Slot) -> Iterator[Problem]:
    name = f"`{rollout.use.use}` trains on groups before the batch is complete"
    once = {"num_iterations": stage.num_iterations, "num_mini_batches": stage.num_mini_batches}
    for key, value in once.items():
        if value != 1:
            yield info.problem(key, f"{name} and makes one optimiser step per batch", f"write `{key}: 1`")
    extras = {"resample": stage.resample, "extra_samples": stage.extra_samples, "critic": stage.critic}
    for key, value in {**extras, "auxiliary_models": stage.auxiliary_models}.items():
        if value:
            yield info.problem(
                key, f"{name}, which `{key}` does not support", f"remove `{key}`, or write `rollout: synchronous`"
            )
    if stage.resources.train is not None and stage.resources.train.workers > 1:
        message = f"{name}, which needs a single trainer"
        yield info.problem("resources.train", message, "remove `train`, or write `rollout: streamed`")
    for slot in info.slots:
        if isinstance(slot.use, ControllerUse) and any(column.endswith("_T") for column in slot.signature.supplied):
            message = f"{name}, but `{slot.use.use}` needs the complete batch"
            yield info.problem(slot.path, message, "use a controller that reads the metrics of the last iteration")
        if not isinstance(slot.use, JUDGING):
            continue
        if "batch" in (slot.values.get("by"), slot.values.get("within")):
            message = f"{name}, but `{slot.use.use}` compares the complete batch"
            yield info.problem(slot.path, message, "write `by: group`, or `rollout: synchronous`")
        if changing := [column for column in CHANGING if column in slot.signature.supplied]:
            message = f"{name}, but `{slot.use.use}` needs `{changing[0]}` and would be called more than once per group"
            yield info.problem(slot.path, message, "use a function of one group, or write `rollout: synchronous`")


def returns_older_samples(slot: Slot) -> bool:
    """Return whether a rollout function or a source of extra samples returns samples of older weights."""
    names = slot.signature.supplied
    if isinstance(slot.use, RolloutUse) and "stream" in names:
        return "consume" not in names and slot.values.get("max_staleness") != 0
    return isinstance(slot.use, RolloutUse | ExtraSamplesUse) and "state" in names
