"""Rules for rl stages whose samples are generated while the trainer works.

A drive that asks for `stream` has rewards answer in threads, group by group; one that asks for `consume` has groups
trained on before the others are known.
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

ALONE = ("state", "policy", "engine", "sampler")
"""What one thread at a time may hold."""
KEPT = ("state", "history", "rng")
"""What changes from one call to the next."""
JUDGING = (FilterGroupsUse, RewardShapingUse, AdvantageUse, AdvantageShapingUse, ImportanceCorrectionUse, TokenMaskUse)


def check_asynchrony(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield every contradiction about drives that work beside the trainer."""
    for drive in info.slots:
        if not isinstance(drive.use, RolloutUse) or "stream" not in drive.signature.supplied:
            continue
        yield from _rewards(info, drive)
        yield from _ahead(info, drive)
        yield from _counted(info, stage, drive)
        if "consume" in drive.signature.supplied:
            yield from _pieces(info, stage, drive)


def _rewards(info: StepInfo, drive: Slot) -> Iterator[Problem]:
    for slot in info.slots:
        held = [name for name in ALONE if name in slot.signature.supplied]
        if isinstance(slot.use, RewardUse) and held:
            message = f"`{slot.use.use}` asks for `{held[0]}`, and `{drive.use.use}` has several groups scored at once"
            yield info.problem(
                slot.path, message, "take a reward that depends on the completions alone, or `rollout: synchronous`"
            )


def _ahead(info: StepInfo, drive: Slot) -> Iterator[Problem]:
    ahead, limit = drive.values.get("ahead"), drive.values.get("max_staleness")
    ahead, lag = ahead if isinstance(ahead, int) else 0, int(drive.values.get("sync") == "each")
    if isinstance(limit, int) and ahead > limit - lag:
        behind = ", by workers that are one version behind" if lag else ""
        message = f"what is asked {ahead} iterations ahead would be older than max_staleness, {limit}{behind}"
        yield info.problem(
            join_path(drive.path, "ahead" if ahead else "sync"), message, "lower `ahead`, or raise `max_staleness`"
        )
    if lag and drive.values.get("interrupt") is False:
        message = "`sync: each` changes the weights under what runs, and `interrupt: false` says that nothing may"
        yield info.problem(join_path(drive.path, "sync"), message, "leave out one of the two")


def _counted(info: StepInfo, stage: Rl, drive: Slot) -> Iterator[Problem]:
    if drive.values.get("steps_per_update") is not None and stage.resources.rollout is not None:
        message = "decode steps are counted in the step's own process, and `resources.rollout` has processes of its own"
        yield info.problem(join_path(drive.path, "steps_per_update"), message, "leave out one of the two")


def _pieces(info: StepInfo, stage: Rl, drive: Slot) -> Iterator[Problem]:
    name = f"`{drive.use.use}` trains on groups before the batch is complete"
    once = {"num_iterations": stage.num_iterations, "num_mini_batches": stage.num_mini_batches}
    for key, value in once.items():
        if value != 1:
            yield info.problem(key, f"{name}, with one optimiser step at its end", f"write `{key}: 1`")
    beside = {"resample": stage.resample, "extra_samples": stage.extra_samples, "critic": stage.critic}
    for key, value in {**beside, "auxiliary_models": stage.auxiliary_models}.items():
        if value:
            yield info.problem(
                key, f"{name}: `{key}` would come too late", f"leave out `{key}`, or take `rollout: synchronous`"
            )
    if stage.resources.train is not None and stage.resources.train.workers > 1:
        message = f"{name}, which one process does by itself"
        yield info.problem("resources.train", message, "leave out `train`, or take `rollout: streamed`")
    for slot in info.slots:
        if isinstance(slot.use, ControllerUse) and any(asked.endswith("_T") for asked in slot.signature.supplied):
            message = f"{name}, and `{slot.use.use}` looks at all of it"
            yield info.problem(slot.path, message, "take a controller that reads the last iteration's metrics")
        if not isinstance(slot.use, JUDGING):
            continue
        if "batch" in (slot.values.get("by"), slot.values.get("within")):
            message = f"{name}, and `{slot.use.use}` compares all of it"
            yield info.problem(slot.path, message, "write `by: group`, or take `rollout: synchronous`")
        if held := [asked for asked in KEPT if asked in slot.signature.supplied]:
            message = (
                f"{name}, and `{slot.use.use}` asks for `{held[0]}`: it would see groups one by one, and then again"
            )
            yield info.problem(slot.path, message, "take a function that judges one group, or `rollout: synchronous`")


def returns_older_samples(slot: Slot) -> bool:
    """Return whether a drive or a source hands out samples of weights before the last update."""
    asked = slot.signature.supplied
    if isinstance(slot.use, RolloutUse) and "stream" in asked:
        return "consume" not in asked and slot.values.get("max_staleness") != 0
    return isinstance(slot.use, RolloutUse | ExtraSamplesUse) and "state" in asked
