"""Rules for searches: settings that exist, values that the stage accepts, and no test split that chooses."""

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from schemas.base import JsonObject
from schemas.checks.merge_searches import ADVICE, find_problem_leaks
from schemas.errors import Problem
from schemas.search_space import Value, list_extremes, replace_setting
from schemas.stages.base import BaseStage
from schemas.stages.control import Control
from schemas.stages.evaluate_control import EvaluateControl
from schemas.stages.search import Search
from schemas.steps.slots import bind_slots
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest

IN_PARTS = {"pbt", "dehb"}
"""Samplers whose trials take a share of a training's steps, which kind control can count."""
FIXED = {"kind", "algorithm", "seed", "env", "model", "models", "data", "prompts", "environment"}
"""Settings that a search may not vary: another problem, or what the preset has already set."""


def check_search(info: StepInfo, stage: Search, steps: Mapping[str, StepInfo]) -> Iterator[Problem]:
    """Yield the problems of a search whose stages are filled in."""
    for key in sorted(stage.filled_in):
        if info.node.get(key) is not None:
            yield info.problem(key, f"`{key}` is filled in when the recipe is read", "remove it")
    if stage.trained is None or stage.evaluated is None:
        return
    named = {port.path: port.steps[0] for port in info.ports if port.path in ("train", "evaluate")}
    trained, evaluated = steps[named["train"]], steps[named["evaluate"]]
    settings = trained.dump()
    for path, values in stage.space.items():
        yield from _check_setting(info, trained, settings, path, list_extremes(values))
    if stage.sampler.use == "by_hand":
        for place, given in enumerate(stage.sampler.options.get("settings", [])):
            for path, value in given.items():
                yield from _check_setting(info, trained, settings, path, [value], f"sampler.settings.{place}.{path}")
    yield from _check_steps(info, trained, stage)
    metrics = [slot.signature.name for slot in evaluated.slots if slot.path.startswith("metrics.")]
    if not any(stage.metric.startswith(name) for name in metrics):
        advice = suggest(stage.metric, metrics, "its metrics")
        yield info.problem("metric", f"`{evaluated.name}` has no metric `{stage.metric}`", advice)
    if isinstance(evaluated.stage, EvaluateControl):
        yield from _check_starts(info, evaluated, evaluated.stage, steps)
    else:
        others = {name: other for name, other in steps.items() if name != evaluated.name}
        for message, advice in find_problem_leaks(evaluated, others):
            yield info.problem("evaluate", message, advice)


def _check_steps(info: StepInfo, trained: StepInfo, stage: Search) -> Iterator[Problem]:
    """Yield problems of seeds that choose and test, of steps that cannot be counted, and of starts that are played."""
    assert stage.trained is not None
    if not stage.seeds and stage.trained.seed in stage.test_seeds:
        message = f"`test_seeds` has {stage.trained.seed}, the seed of `{trained.name}`, which chooses"
        yield info.problem("test_seeds", message, "test with other seeds")
    if isinstance(stage.trained, Control):
        if stage.max_environment_steps is not None and not stage.trained.environment_steps:
            message = f"`{trained.name}` is trained offline: it takes no environment steps"
            yield info.problem("max_environment_steps", message, "remove it")
        return
    if stage.max_environment_steps is not None or stage.sampler.use in IN_PARTS:
        where = "max_environment_steps" if stage.max_environment_steps is not None else "sampler"
        message = f"`{trained.name}` is of kind {stage.trained.kind}, whose steps are not shared out"
        yield info.problem(where, message, "it needs a stage of kind control")


def _check_setting(
    info: StepInfo, trained: StepInfo, settings: JsonObject, path: str, values: list[Value], where: str = ""
) -> Iterator[Problem]:
    """Yield a problem if the stage lacks a setting, refuses a value of it, or would run other code with it."""
    where = where or f"space.{path}"
    if path.partition(".")[0] in FIXED or path.endswith(".use"):
        yield info.problem(where, f"`{path}` cannot be searched", "search numbers and options of the same functions")
        return
    for value in values:
        try:
            changed = replace_setting(settings, path, value)
        except KeyError:
            head, _, last = path.rpartition(".")
            known = settings.get(head, {}) if head else settings
            names = [str(name) for name in known] if isinstance(known, dict) else []
            yield info.problem(where, f"`{trained.name}` has no setting `{path}`", suggest(last, names, "settings"))
            return
        wrong = _find_refusal(trained, changed)
        if wrong:
            yield info.problem(where, f"`{trained.name}` refuses {path} {value}: {wrong}", "narrow the space")
            return


def _find_refusal(trained: StepInfo, settings: JsonObject) -> str:
    """Return why a stage refuses settings; empty if it accepts them."""
    try:
        stage: BaseStage = type(trained.stage).model_validate(settings)
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    slots, problems = bind_slots(stage, trained.node, trained.path, ())
    if problems:
        return problems[0].message
    code = {(slot.signature.module, slot.signature.name) for slot in trained.slots}
    if {(slot.signature.module, slot.signature.name) for slot in slots} != code:
        return "it would run other functions"
    return "" if stage.optional_code() == trained.stage.optional_code() else "it would run other code"


def _check_starts(
    info: StepInfo, evaluated: StepInfo, stage: EvaluateControl, steps: Mapping[str, StepInfo]
) -> Iterator[Problem]:
    """Yield a problem per evaluation that plays the starts by which the search chooses: same world, same seed."""
    world = evaluated.dump()["env"]
    for name, other in steps.items():
        same = isinstance(other.stage, EvaluateControl) and other.stage.seed == stage.seed
        if name != evaluated.name and same and other.dump()["env"] == world:
            yield info.problem("evaluate", f"`{name}` plays the same starts as `{evaluated.name}`", START_ADVICE)


START_ADVICE = f"set a `seed` of its own in one of them: {ADVICE.partition(';')[0]}"
