"""Settings that a stage never reads because of its other settings: they are refused where the stage itself writes them.

Defaults of a kind (`defaults:`) are for all its stages, so that some of them need not read all of it.
"""

from collections.abc import Iterator
from typing import Any

from schemas.endpoint import find_endpoints
from schemas.errors import Problem
from schemas.problem_sampling import ProblemSampling
from schemas.stages.rl import Rl
from schemas.stages.synthesize import Synthesize
from schemas.steps.step_info import StepInfo
from schemas.use import Use

LOADING = ("dtype", "engine")
"""Settings of a model that is loaded to sample from."""
SAMPLING = ("num_generations", "temperature", "max_completion_length", "rewards", "min_reward", "min_margin")
"""Settings of samples that are drawn, scored and chosen, whether by a model here or behind a server."""


def find_unused_settings(info: StepInfo) -> Iterator[Problem]:
    """Yield the settings of a step that have no effect beside its others."""
    stage = info.stage
    if isinstance(stage, Synthesize):
        yield from _check_synthesize(info, stage)
    if isinstance(stage, Synthesize | ProblemSampling) and _asks_server(info, "engine"):
        message = "has no effect: the engine asks a server, which has loaded the model"
        yield from _refuse(info, ("dtype",), message, "leave it out")
    if isinstance(stage, Rl):
        if stage.eval_prompts is None:
            yield from _refuse(info, ("eval_steps",), "no prompts are held out", "give `eval_prompts`, or leave it out")
        for name, spec in stage.references.items():
            if spec.sync_steps is None and spec.mixup_alpha != 1:
                message = "has no effect: this reference is never updated"
                yield info.problem(f"references.{name}.mixup_alpha", message, "set `sync_steps`, or leave it out")


def _check_synthesize(info: StepInfo, stage: Synthesize) -> Iterator[Problem]:
    """Yield settings of a model where none is sampled."""
    if stage.emit == "prompts":
        message = "has no effect: `emit: prompts` writes problems without completions"
        yield from _refuse(info, (*LOADING, *SAMPLING), message, "leave it out")
    elif stage.teacher is not None:
        yield from _refuse(info, LOADING, "has no effect: a teacher writes the completions", "leave it out")
        if not _asks_server(info, "teacher"):
            message = f"has no effect: `{stage.teacher.use}` is a program, which writes one completion of each problem"
            yield from _refuse(info, SAMPLING, message, "leave it out, or give a `model`")
    elif stage.emit == "chat":
        message = "has no effect: `emit: chat` keeps single samples; pairs are written by `emit: preference_pairs`"
        yield from _refuse(info, ("min_margin",), message, "leave it out")
    else:
        message = "has no effect: pairs are chosen by the difference of their rewards"
        yield from _refuse(info, ("min_reward",), message, "set `min_margin`, or leave it out")


def _asks_server(info: StepInfo, path: str) -> bool:
    """Return whether the function of a slot asks a model behind a server."""
    return any(slot.path == path and find_endpoints(slot.values) for slot in info.slots)


def _refuse(info: StepInfo, keys: tuple[str, ...], message: str, advice: str) -> Iterator[Problem]:
    """Yield a problem for each of the keys that the stage itself sets to another value than its default."""
    start, fields = info.node.mark, type(info.stage).model_fields
    for key in keys:
        node, default = info.node.get(key), fields[key].get_default(call_default_factory=True)
        if node is None or _name(getattr(info.stage, key)) == _name(default):
            continue
        if node.where.file == start.file and node.where.line >= start.line:
            yield info.problem(key, message, advice)


def _name(value: Any) -> Any:
    """Return a value, of functions only their names: the default may be written with the options that it has."""
    if isinstance(value, list):
        return [_name(item) for item in value]
    return value.use if isinstance(value, Use) else value
