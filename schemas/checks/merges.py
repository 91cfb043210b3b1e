"""Rules for merge stages: a known method, its parameters, and `base_model` where the method needs one."""

from collections.abc import Iterator

from schemas.errors import Problem
from schemas.signatures import Signature, list_names, read_signature
from schemas.source.tree import join_path, make_problem
from schemas.source.validation import follow_path
from schemas.stages.base import BaseStage
from schemas.stages.merge import Merge
from schemas.stages.merge_search import MergeSearch
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest
from schemas.use import MergeMethodUse

WITHOUT_EFFECT = {"int8_mask"}
"""Parameters of mergekit that do not change the result."""
OTHERS = {"slerp": 1}
"""How many models beside `base_model` a method takes, of those that do not take any number."""


def list_merge_methods() -> list[str]:
    """Return the names of all merge methods: the functions whose first parameter is `tensors`."""
    return [n for n in list_names(MergeMethodUse) if read_signature(MergeMethodUse, n).supplied[:1] == ("tensors",)]


def list_merge_functions(stage: BaseStage) -> list[tuple[str, str]]:
    """Return module and name of the functions by which a stage merges, and of those that compute their totals."""
    names = [stage.merge_method] if isinstance(stage, Merge) else []
    names += [space.merge_method for space in stage.candidates] if isinstance(stage, MergeSearch) else []
    functions: list[tuple[str, str]] = []
    for method in (read_signature(MergeMethodUse, name) for name in dict.fromkeys(names)):
        functions.append((method.module, method.name))
        functions += [(method.module, f"{method.name}_totals")] if "totals" in method.supplied else []
    return functions


def check_merge(info: StepInfo, stage: Merge) -> Iterator[Problem]:
    """Yield the problems of a merge that follow from the signature of its method."""
    if bool(stage.models) == bool(stage.slices):
        message = "give exactly one of `models` and `slices`"
        yield make_problem(
            info.node.where, info.path, message, "`models` merges complete models, `slices` merges ranges of layers"
        )
    if stage.merge_method not in list_merge_methods():
        advice = suggest(stage.merge_method, list_merge_methods(), "methods")
        yield info.problem("merge_method", f"no method `{stage.merge_method}`", advice)
        return
    method = read_signature(MergeMethodUse, stage.merge_method)
    if "base" in method.supplied and stage.base_model is None:
        message = f"`{stage.merge_method}` merges differences to a base model and needs `base_model`"
        yield info.problem("merge_method", message, "set `base_model` to the model that the others were trained from")
    others = sum(merged.model != stage.base_model for merged in stage.models)
    wanted = OTHERS.get(stage.merge_method, others)
    if stage.models and others != wanted:
        message = f"`{stage.merge_method}` merges `base_model` with {wanted} other model, here are {others}"
        yield info.problem("models", message, "remove models, or choose a method for several, such as `linear`")
    yield from _check_parameters(info, stage, method)


def _check_parameters(info: StepInfo, stage: Merge, method: Signature) -> Iterator[Problem]:
    """Yield unknown parameters at any level, and required ones that no level sets."""
    parameters_of_method = {option.removesuffix("_"): spec.required for option, spec in method.options.items()}
    set_names: set[str] = set()
    for where, parameters in _list_levels(stage):
        for name in parameters:
            set_names.add(name)
            if name not in parameters_of_method and name not in WITHOUT_EFFECT:
                at = follow_path(info.node, join_path(where, name))
                advice = suggest(name, parameters_of_method, f"parameters of {method.name}")
                yield make_problem(at.where, join_path(info.path, where, name), f"unknown parameter `{name}`", advice)
    for name, required in parameters_of_method.items():
        if required and name not in set_names:
            advice = f"set `{name}` under `parameters` of the stage or of each model"
            yield info.problem("merge_method", f"`{method.name}` needs the parameter `{name}`", advice)


def _list_levels(stage: Merge) -> Iterator[tuple[str, dict[str, object]]]:
    yield "parameters", stage.parameters
    for i, model in enumerate(stage.models):
        yield f"models.{i}.parameters", model.parameters
    for i, piece in enumerate(stage.slices):
        yield f"slices.{i}.parameters", piece.parameters
        for j, source in enumerate(piece.sources):
            yield f"slices.{i}.sources.{j}.parameters", source.parameters
