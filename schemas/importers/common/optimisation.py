"""Optimiser, learning-rate schedule, steps, batches and precision of other tools."""

from dataclasses import dataclass
from typing import Any

from schemas.importers.common.draft import StageDraft
from schemas.importers.common.values import flag, number, whole
from schemas.source.foreign_keys import spread
from schemas.training import Optimizer, Schedule

OPTIMIZERS: dict[str, Optimizer] = {
    **spread(
        "adamw",
        """
adamw adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused adamw_torch_xla paged_adamw paged_adamw_32bit
adamw_torch_npu_fused fusedadam
""",
    ),
    **spread(
        "adamw_8bit",
        """
adamw_8bit adamw_bnb_8bit paged_adamw_8bit adamw8bit
""",
    ),
    **spread(
        "lion",
        """
lion lion_32bit paged_lion_32bit lion_pytorch
""",
    ),
    **dict.fromkeys(["lion_8bit", "paged_lion_8bit"], "lion_8bit"),
    "adafactor": "adafactor",
    "muon": "muon",
}
SCHEDULES: dict[str, Schedule] = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine_with_min_lr",
    "cosine_warmup_with_min_lr": "cosine_with_min_lr",
    "warmup_stable_decay": "warmup_stable_decay",
    "wsd": "warmup_stable_decay",
}
NEAREST: dict[str, tuple[Schedule, str, float]] = {
    "polynomial": ("linear", "power", 1.0),
    "cosine_with_restarts": ("cosine", "num_cycles", 1),
    "rex": ("linear", "", 0.0),
    "reduce_lr_on_plateau": ("constant", "", 0.0),
}
"""Schedules that posttrain lacks: the nearest one, and the option and its default at which they are the same."""


@dataclass(frozen=True)
class Names:
    """What a tool calls the keys of optimisation, and the defaults that it has."""

    learning_rate: str = "learning_rate"
    optim: str = "optim"
    schedule: str = "lr_scheduler_type"
    schedule_options: str = "lr_scheduler_kwargs"
    warmup_ratio: str = "warmup_ratio"
    warmup_steps: str = "warmup_steps"
    weight_decay: str = "weight_decay"
    beta1: str = "adam_beta1"
    beta2: str = "adam_beta2"
    epsilon: str = "adam_epsilon"
    grad_norm: str = "max_grad_norm"
    rate: float = 5e-5
    decay: float = 0.0
    shape: Schedule = "linear"
    warmup: float = 0.0
    norm: float = 1.0


def map_optimisation(stage: StageDraft, names: Names) -> None:
    """Take over optimiser, rates, decay, moments and clipping."""
    stage.copy(names.learning_rate, "learning_rate", number, names.rate)
    _map_optimizer(stage, names)
    _map_schedule(stage, names)
    stage.copy(names.weight_decay, "weight_decay", number, names.decay)
    if stage.get("optim") == "adafactor":
        for key in (names.beta1, names.beta2):
            stage.leaves.account(key, "harmless", "Adafactor has no such number")
    else:
        stage.copy(names.beta1, "adam_beta1", number)
        stage.copy(names.beta2, "adam_beta2", number)
    epsilon = stage.leaves.get(names.epsilon)
    if epsilon is not None:
        is_same = str(epsilon) in ("1e-8", "1e-08", "1.0e-8", "1.0e-08")
        stage.leaves.account(
            names.epsilon,
            "harmless" if is_same else "default differs",
            "is what posttrain uses" if is_same else f"theirs {epsilon}; ours 1e-08, which cannot be set",
        )
    _map_clipping(stage, names)


def _map_optimizer(stage: StageDraft, names: Names) -> None:
    def convert(value: Any) -> str:
        word = str(value).lower().removeprefix("optimizernames.")
        if word not in OPTIMIZERS:
            raise ValueError(f"no optimiser {word}: there are adamw, adamw_8bit, lion, lion_8bit, adafactor, muon")
        return OPTIMIZERS[word]

    stage.copy(names.optim, "optim", convert)


def _map_clipping(stage: StageDraft, names: Names) -> None:
    value = stage.leaves.get(names.grad_norm)
    if value is not None and str(value).lstrip("-").replace(".", "", 1).isdigit() and float(value) <= 0:
        stage.leaves.mapped(names.grad_norm, f"{stage.name}.max_grad_norm", "null, no clipping")
        stage.put("max_grad_norm", None, names.grad_norm)
    else:
        stage.copy(names.grad_norm, "max_grad_norm", number)
        if value is None and names.norm <= 0:
            stage.leaves.state_default(names.grad_norm, names.norm, "1.0; the recipe says null, no clipping")
            stage.put("max_grad_norm", None, f"default of {names.grad_norm}")


def _map_schedule(stage: StageDraft, names: Names) -> None:
    def convert(value: Any) -> str:
        word = str(value).lower().removeprefix("schedulertype.")
        if word not in SCHEDULES:
            raise ValueError(f"no schedule {word}: there are {', '.join(dict.fromkeys(SCHEDULES.values()))}")
        return SCHEDULES[word]

    leaves = stage.leaves
    given = str(leaves.get(names.schedule, "")).lower().removeprefix("schedulertype.")
    if given in NEAREST:
        shape = _put_nearest(stage, names, given)
    else:
        shape = stage.copy(names.schedule, "lr_scheduler_type", convert, names.shape)
    _map_options(stage, names, str(shape))
    steps, ratio = leaves.get(names.warmup_steps), leaves.get(names.warmup_ratio)
    if steps is not None and _is_share(steps):
        stage.copy(names.warmup_steps, "warmup_ratio", number)
        leaves.harmless(names.warmup_ratio, f"{names.warmup_steps} comes before it")
    elif steps not in (None, 0, -1, "0"):
        stage.copy(names.warmup_steps, "warmup_steps", whole)
        leaves.harmless(names.warmup_ratio, f"{names.warmup_steps} comes before it")
    else:
        leaves.harmless(names.warmup_steps, "no steps: the ratio counts")
        default = names.warmup if steps is None and ratio is None else None
        stage.copy(names.warmup_ratio, "warmup_ratio", number, default or None)


def _put_nearest(stage: StageDraft, names: Names, given: str) -> Schedule:
    """Write the nearest schedule to one that posttrain lacks, which is the same one at the default of its option."""
    nearest, option, same_at = NEAREST[given]
    at = f"{names.schedule_options}.{option}"
    value = stage.leaves.get(at, same_at)
    is_same = bool(option) and number(value) == same_at
    stage.put("lr_scheduler_type", nearest, f"{names.schedule}: {given}")
    if is_same:
        stage.leaves.mapped(names.schedule, f"{stage.name}.lr_scheduler_type", f"{nearest}, the same curve")
        stage.leaves.mapped(at, f"{stage.name}.lr_scheduler_type", nearest)
    else:
        note = f"there is no schedule {given}; the recipe has {nearest}"
        stage.leaves.account(names.schedule, "not supported", note)
    return nearest


def _is_share(value: Any) -> bool:
    try:
        return 0 < number(value) < 1
    except ValueError:
        return False


def _map_options(stage: StageDraft, names: Names, shape: str) -> None:
    options, at = stage.leaves.get(names.schedule_options), names.schedule_options
    if not isinstance(options, dict):
        if options not in (None, "", {}):
            stage.leaves.unsupported(at, "write its options as keys of the stage: min_lr_ratio, num_decay_steps")
        if shape == "cosine_with_min_lr" and "min_lr_ratio" not in stage.lines:
            stage.put("lr_scheduler_type", "cosine", names.schedule)
        return
    if shape in ("cosine_with_min_lr", "warmup_stable_decay"):
        for theirs in ("min_lr_rate", "min_lr_ratio"):
            if theirs in options:
                stage.copy(f"{at}.{theirs}", "min_lr_ratio", number)
        if "min_lr" in options and "min_lr_ratio" not in stage.lines:
            peak = number(stage.get("learning_rate", names.rate))
            stage.copy(f"{at}.min_lr", "min_lr_ratio", lambda value: float(f"{number(value) / peak:.6g}"))
    if shape == "warmup_stable_decay":
        stage.copy(f"{at}.num_decay_steps", "num_decay_steps", whole)
        stage.copy(f"{at}.decay_type", "decay_type", str)
        if "num_stable_steps" in options:
            stage.leaves.harmless(f"{at}.num_stable_steps", "follows from the steps of warm-up and decay")
    if shape == "cosine_with_min_lr" and not stage.get("min_lr_ratio"):
        stage.lines.pop("min_lr_ratio", None)
        stage.put("lr_scheduler_type", "cosine", names.schedule)
    stage.leaves.unsupported(at, f"no option of `lr_scheduler_type: {shape}`")


def map_steps(stage: StageDraft, epochs: str, steps: str, default_epochs: float) -> None:
    """Take over passes over the data, or the number of optimiser steps in their place."""
    leaves, given = stage.leaves, stage.leaves.get(steps)
    if given is not None and _is_positive(given):
        stage.copy(steps, "max_steps", whole)
        leaves.harmless(epochs, f"{steps} comes before it")
        end_in_warmup(stage)
        return
    leaves.harmless(steps, "no number of steps: the epochs count")
    stage.copy(epochs, "num_train_epochs", number, default_epochs)


def end_in_warmup(stage: StageDraft) -> None:
    """Write a training that ends before its warm-up does: it warms up to the rate that it would have reached."""
    warmup, steps = stage.get("warmup_steps", 0), stage.get("max_steps")
    if isinstance(steps, int) and warmup > steps:
        source = f"{stage.lines['warmup_steps'].source}: {steps} of {warmup} steps"
        stage.put("learning_rate", float(f"{stage.get('learning_rate') * steps / warmup:.6g}"), source)
        stage.put("warmup_steps", steps, source)
        stage.leaves.renote(f"{stage.name}.warmup_steps", f"{stage.name}.learning_rate, warmup_steps: {source}")


def _is_positive(value: Any) -> bool:
    try:
        return number(value) > 0
    except ValueError:
        return False


def map_batch(stage: StageDraft, rows: str, accumulation: str, devices: int, default: int) -> None:
    """Take over the rows of an optimiser step: per device × accumulation × devices."""
    leaves = stage.leaves
    try:
        each, steps = whole(leaves.get(rows, default)), whole(leaves.get(accumulation, 1))
    except ValueError as error:
        for key in (rows, accumulation):
            leaves.account(key, "not supported", f"{error}; set the batch of stages.{stage.name} yourself")
        return
    source = f"{rows} × {accumulation} × {devices} {'device' if devices == 1 else 'devices'}"
    total = f"{each} × {steps} × {devices} = {each * steps * devices} rows per optimiser step"
    if stage.kind == "sft":
        stage.put("per_device_train_batch_size", each, rows)
        if steps * devices > 1:
            stage.put("gradient_accumulation_steps", steps * devices, f"{accumulation} × {devices} devices")
    else:
        stage.put("per_device_train_batch_size", each * steps * devices, source)
    for key in (rows, accumulation):
        if leaves.has(key):
            leaves.mapped(key, f"{stage.name}.per_device_train_batch_size", total)
        leaves.account(key, "harmless", "is null: the default")
    if not leaves.has(rows) and stage.get("per_device_train_batch_size") != 32:
        leaves.state_default(rows, default, f"32; the recipe has {total}")


def map_precision(stage: StageDraft, bf16: str, fp16: str, default: bool = False) -> None:
    """Take over the precision: bfloat16 or float32; float16 becomes bfloat16."""
    leaves = stage.leaves
    fp16_value = leaves.get(fp16)
    if fp16_value is not None and str(fp16_value).lower() not in ("false", "no", "off", ""):
        leaves.account(fp16, "not supported", "there is no float16; the recipe has `bf16: true`")
        stage.put("bf16", True, fp16)
        default = False
    leaves.harmless(fp16, "is off")
    given = leaves.get(bf16)
    if isinstance(given, str) and given.lower() == "full":
        leaves.mapped(bf16, f"{stage.name}.dtype", "bfloat16")
        stage.put("dtype", "bfloat16", bf16)
        return
    before = stage.lines.get("bf16")
    stage.copy(bf16, "bf16", flag, default or None)
    if before is not None:
        stage.lines["bf16"] = before


def map_dtype(stage: StageDraft, dtype: str) -> None:
    """Take over the precision of the weights, which takes the place of `bf16`."""
    word = str(stage.leaves.get(dtype, "")).lower().removeprefix("torch.")
    if word in ("bfloat16", "bf16"):
        stage.leaves.mapped(dtype, f"{stage.name}.dtype", "bfloat16")
        stage.put("dtype", "bfloat16", dtype)
        stage.lines.pop("bf16", None)
        stage.leaves.renote(f"{stage.name}.bf16", f"{stage.name}.dtype: bfloat16, {dtype}")
    elif word in ("auto", "float32", "fp32", ""):
        why = "weights in training are float32 unless `dtype` says otherwise"
        stage.leaves.account(dtype, "default differs" if word == "auto" else "harmless", why)
    else:
        stage.leaves.account(dtype, "not supported", "weights are float32 or bfloat16: set `dtype`")
