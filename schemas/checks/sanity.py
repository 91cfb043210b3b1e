"""Rules for numbers that their type allows but no run can use, such as a temperature of 1e308."""

from collections.abc import Iterator, Mapping
from typing import Any

from schemas.errors import Problem
from schemas.source.tree import join_path
from schemas.steps.slots import Slot
from schemas.steps.step_info import StepInfo

LARGEST = {
    "temperature": 100.0,
    "learning_rate": 1e3,
    "workers": 10_000,
    "num_cpus": 1e6,
    "num_gpus": 1e6,
    "heads": 10_000,
    "lora_r": 100_000,
    "lora_alpha": 1e6,
    "num_generations": 1_000_000,
    "num_bootstrap": 10_000_000,
    "per_device_train_batch_size": 1_000_000,
    "gradient_accumulation_steps": 1_000_000,
    "generation_batch_size": 100_000_000,
    "max_length": 100_000_000,
    "max_completion_length": 100_000_000,
    "size": 1e9,
    "timeout": 1e9,
    "approve_within": 1e9,
    "backoff": 1e9,
    "max_backoff": 1e9,
}
"""Largest value of a setting by its key, in stages and in options of posttrain's functions."""
OF_ANY = 1e12
"""Largest magnitude of every other number."""
COUNTS_BELOW = 2**31
"""Upper bound (exclusive) of whole-number options that declare no range; the lower bound is 0."""
MEMORY = 20
"""Largest number of characters of an amount of memory such as `2GiB`."""
FREE = ("notes", "config", "extra")
"""Maps whose keys posttrain does not define."""


def check_ranges(info: StepInfo) -> Iterator[Problem]:
    """Yield the numbers of a step that are outside the range of their key."""
    own = {slot.path for slot in info.slots if ":" in slot.use.use}
    dumped = info.stage.model_dump(by_alias=True, exclude=set(FREE), exclude_defaults=True)
    yield from _check_numbers(info, dumped, "", own)
    for slot in info.slots:
        if slot.path not in own:
            yield from _check_options(info, slot)


def _check_numbers(info: StepInfo, value: Any, path: str, own: set[str]) -> Iterator[Problem]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            if key not in FREE and path not in own:
                yield from _check_numbers(info, child, join_path(path, str(key)), own)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _check_numbers(info, child, join_path(path, index), own)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_size(info, value, path)
    elif isinstance(value, str) and path.rpartition(".")[2] == "memory" and len(value) > MEMORY:
        yield info.problem(path, "the amount of memory is too long", "write for example `memory: 2GiB`")


def _check_size(info: StepInfo, value: float, path: str) -> Iterator[Problem]:
    key = path.rpartition(".")[2]
    largest = LARGEST.get("temperature" if key.endswith("temperature") else key, OF_ANY)
    if abs(value) > largest:
        yield info.problem(path, f"{value:g} is too large", f"write at most {largest:g}")


def _check_options(info: StepInfo, slot: Slot) -> Iterator[Problem]:
    for name, option in slot.signature.options.items():
        value = slot.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not _has_no_range(option.type):
            continue
        if not 0 <= value < COUNTS_BELOW:
            message = f"`{slot.use.use}` needs a whole number from 0 to {COUNTS_BELOW - 1}, not {value}"
            yield info.problem(join_path(slot.path, name), message, f"write a number in that range, or remove `{name}`")


def _has_no_range(kind: Any) -> bool:
    """Return whether a type is a whole number without a declared range."""
    return kind is int or set(getattr(kind, "__args__", ())) == {int, type(None)}
