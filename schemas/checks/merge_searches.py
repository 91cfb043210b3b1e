"""Rules for searches of merges: methods and their parameters, and no test split among the problems that choose."""

import re
from collections.abc import Iterator, Mapping

from schemas.checks.merges import WITHOUT_EFFECT, list_merge_methods
from schemas.errors import Problem
from schemas.evaluation_slots import ANSWER_LOGPROBS
from schemas.references import TABLE_TYPES
from schemas.signatures import read_signature
from schemas.stages.data import Data
from schemas.stages.evaluate import Evaluate
from schemas.stages.merge_search import MergeSearch, MergeSpace
from schemas.steps.slots import identify_slot, is_task
from schemas.steps.step_info import Port, StepInfo
from schemas.suggestions import suggest
from schemas.use import MergeMethodUse

ADVICE = "what is chosen by an evaluation's problems is too good on them; give the search problems of its own"
UNREAD = {ANSWER_LOGPROBS, "text_PN"}
"""What a search does not supply to its metric."""


def check_merge_search(info: StepInfo, stage: MergeSearch, steps: Mapping[str, StepInfo]) -> Iterator[Problem]:
    """Yield the problems of a search of merges."""
    for index, space in enumerate(stage.candidates):
        yield from _check_space(info, stage, f"candidates.{index}", space)
    methods = {space.merge_method for space in stage.candidates}
    for name in stage.models:
        if re.fullmatch(rf"(?:{'|'.join(map(re.escape, sorted(methods)))})-\d+", name):
            yield info.problem(f"models.{name}", f"`{name}` is the name of a merge of this search", "rename the model")
    metric = next(slot for slot in info.slots if slot.path == "metric")
    if unread := sorted(UNREAD & set(metric.signature.supplied)):
        message = f"`{metric.use.use}` reads `{unread[0]}`, which a search does not compute"
        yield info.problem("metric", message, "choose by accuracy, a mean score or a metric of lm-eval")
    yield from _check_problems(info, steps)


def _check_space(info: StepInfo, stage: MergeSearch, path: str, space: MergeSpace) -> Iterator[Problem]:
    methods = list_merge_methods()
    if space.merge_method not in methods:
        advice = suggest(space.merge_method, methods, "methods")
        yield info.problem(f"{path}.merge_method", f"no method `{space.merge_method}`", advice)
        return
    method = read_signature(MergeMethodUse, space.merge_method)
    if "base" in method.supplied and stage.base_model is None:
        message = f"`{space.merge_method}` merges differences to a base model and needs `base_model`"
        advice = "set `base_model` to the model that the others were trained from"
        yield info.problem(f"{path}.merge_method", message, advice)
    options = {name.removesuffix("_"): option for name, option in method.options.items()}
    places = dict.fromkeys(space.each, "each") | dict.fromkeys(space.parameters, "parameters")
    places |= {"weight": "weight_steps"} if space.weight_steps else {}
    for name, place in places.items():
        where = path if place == "weight_steps" else f"{path}.{place}"
        where = f"{where}.{place if place == 'weight_steps' else name}"
        if name not in options and name not in WITHOUT_EFFECT:
            advice = suggest(name, options, f"parameters of {method.name}")
            yield info.problem(where, f"`{method.name}` has no parameter `{name}`", advice)
        elif name in options and place != "parameters" and "list" not in str(options[name].type):
            message = f"`{name}` of `{method.name}` is one value for all models"
            yield info.problem(where, message, "list its values under `parameters`")
    for name, option in options.items():
        if option.required and name not in places:
            advice = "set `weight_steps: 4`" if name == "weight" else f"list values of `{name}` under `parameters`"
            yield info.problem(f"{path}.merge_method", f"`{method.name}` needs the parameter `{name}`", advice)


def find_problem_leaks(info: StepInfo, steps: Mapping[str, StepInfo]) -> Iterator[tuple[str, str]]:
    """Yield message and advice for every test split, or problem of an evaluation among `steps`, that would choose."""
    yield from ((message, advice) for _, message, advice in _find_leaks(info, steps))


def _check_problems(info: StepInfo, steps: Mapping[str, StepInfo]) -> Iterator[Problem]:
    """Yield a problem per test split that the search would choose by."""
    yield from (info.problem(where, message, advice) for where, message, advice in _find_leaks(info, steps))


def _find_leaks(info: StepInfo, steps: Mapping[str, StepInfo]) -> Iterator[tuple[str, str, str]]:
    """Yield place, message and advice for every test split and problem of an evaluation that an evaluation reads."""
    evaluated = {
        identify_slot(slot): name
        for name, other in steps.items()
        if isinstance(other.stage, Evaluate)
        for slot in filter(is_task, other.slots)
    }
    for slot in filter(is_task, info.slots):
        split = slot.values.get("split")
        if isinstance(split, str) and is_test(split):
            message = f"`split: {split}` is a test split, by which nothing may be chosen"
            yield slot.path, message, "use `split: train` with a `seed` of its own"
        elif (name := evaluated.get(identify_slot(slot))) is not None:
            yield slot.path, f"these are the problems of the evaluation `{name}`", ADVICE
    for port in info.ports:
        if port.path != "prompts":
            continue
        for name, other in steps.items():
            if isinstance(other.stage, Evaluate) and any(
                given.path == "prompts" and given.content == port.content for given in other.ports
            ):
                yield "prompts", f"these are the problems of the evaluation `{name}`", ADVICE
        if marked := next(_find_test_splits(port, steps, set()), None):
            yield "prompts", f"{marked}, by which nothing may be chosen", "name validation problems"


def _find_test_splits(port: Port, steps: Mapping[str, StepInfo], seen: set[str]) -> Iterator[str]:
    """Yield where rows that reach a port come from a test split."""
    if port.source is not None:
        if is_test(port.source.rstrip("/").rpartition("/")[2].partition(":")[2] or port.source.rpartition("/")[2]):
            yield f"`{port.source}` is named as a test split"
        return
    for name in port.steps:
        if name in seen or name not in steps:
            continue
        seen.add(name)
        info = steps[name]
        for slot in info.slots:
            split = slot.values.get("split")
            if isinstance(split, str) and is_test(split) and slot.path.startswith("problems"):
                yield f"`{name}` reads `split: {split}`, a test split"
        for source in info.stage.sources if isinstance(info.stage, Data) else ():
            if source.split is not None and is_test(source.split):
                yield f"`{name}` reads `split: {source.split}`, a test split"
        for given in info.ports:
            if set(given.accepts) & set(TABLE_TYPES):
                yield from _find_test_splits(given, steps, seen)


def is_test(name: str) -> bool:
    """Return whether the name of a split or a file has the word `test`."""
    return "test" in re.split(r"[^a-z0-9]+", name.lower())
