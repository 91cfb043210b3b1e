"""Values that a type and a range allow, and that hardly anyone means: they warn, with the usual ones."""

from collections.abc import Iterator

from schemas.errors import Problem
from schemas.source.tree import Node
from schemas.stages.evaluate import Evaluate
from schemas.stages.practice import Practice
from schemas.stages.rl import Rl
from schemas.stages.synthesize import Synthesize
from schemas.steps.step_info import StepInfo
from schemas.training import Training

USUAL = {
    "weight_decay": (0.0, 1.0),
    "max_grad_norm": (0.01, 1000.0),
    "num_train_epochs": (0.0, 100.0),
    "adam_beta1": (0.5, 0.999),
    "adam_beta2": (0.8, 0.99999),
    "lora_r": (1, 1024),
    "lora_dropout": (0.0, 0.5),
}
"""Smallest and largest usual value of a training setting."""
TEMPERATURE = (0.1, 3.0)
"""Usual temperatures of sampling from which something is learned."""
SHORT = 1
"""Tokens of a completion that holds one token at most, which may be its end."""


def find_unusual_values(info: StepInfo) -> Iterator[Problem]:
    """Yield the settings of a step that are far from the usual ones."""
    stage = info.stage
    if isinstance(stage, Training):
        for key, (low, high) in USUAL.items():
            yield from _compare(info, key, low, high)
        yield from _check_end(info, stage)
    if isinstance(stage, Evaluate):
        yield from _find_equal_models(info)
    if isinstance(stage, Rl | Practice) or (isinstance(stage, Synthesize) and stage.model is not None):
        yield from _compare(info, "temperature", *TEMPERATURE)
        if stage.max_completion_length <= SHORT:
            message = "completions have one token, and the end of a turn is a token too"
            yield info.problem("max_completion_length", message, "longer completions can be learned from and scored")


def _find_equal_models(info: StepInfo) -> Iterator[Problem]:
    """Yield the models of an evaluation that are the same as one before, and that nothing else tells from it."""
    names: dict[tuple[object, ...], str] = {}
    maps = [value for key, value in info.dump().items() if isinstance(value, dict) and key != "models"]
    distinguished = {name for value in maps for name in value}  # by a solver of its own, an environment, a memory
    for port in info.ports:
        if port.path.startswith("models.") and port.path.removeprefix("models.") not in distinguished:
            name = port.path.removeprefix("models.")
            if (other := names.setdefault(port.content, name)) != name:
                yield info.problem(port.path, f"`{name}` is the same model as `{other}`", "name another one")


def _check_end(info: StepInfo, training: Training) -> Iterator[Problem]:
    """Yield epochs beside a number of steps, which comes before them; a profile may shorten a stage that has epochs."""
    steps, epochs = info.node.get("max_steps"), info.node.get("num_train_epochs")
    if training.max_steps > 0 and steps is not None and epochs is not None and _are_in_one_map(info, steps, epochs):
        message = f"{epochs.value} has no effect beside `max_steps: {training.max_steps}`, which comes first"
        yield info.problem("num_train_epochs", message, "remove one: steps are updates, epochs passes over the rows")


def _are_in_one_map(info: StepInfo, one: Node, other: Node) -> bool:
    """Return whether two keys of a stage are written beside each other: in one line, or one under the other."""
    first, second = one.where, other.where
    is_beside = first.line == second.line or first.column == second.column
    return (
        first.file == second.file == info.node.mark.file
        and is_beside
        and min(first.line, second.line) >= info.node.mark.line
    )


def _compare(info: StepInfo, key: str, low: float, high: float) -> Iterator[Problem]:
    value = getattr(info.stage, key, None)
    if isinstance(value, int | float) and not low <= value <= high:
        yield info.problem(key, f"{value:g} is far from the usual", f"usual are {low:g} to {high:g}")
