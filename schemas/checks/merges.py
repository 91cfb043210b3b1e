"""Rules for merge stages: a known method, its parameters, a base where it needs one."""

from collections.abc import Iterator

from schemas.errors import Problem
from schemas.signatures import Signature, list_names, read_signature
from schemas.source.tree import join_path, make_problem
from schemas.source.validation import follow_path
from schemas.stages.merge import Merge
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest
from schemas.use import MergeMethodUse

# Parameters of mergekit that change how it computes and not what.
WITHOUT_EFFECT = {"int8_mask"}


def list_merge_methods() -> list[str]:
    """Return every merge method: functions whose first parameter is the tensors; others in the module only help."""
    return [n for n in list_names(MergeMethodUse) if read_signature(MergeMethodUse, n).supplied[:1] == ("tensors",)]


def list_merge_functions(stage: Merge) -> list[tuple[str, str]]:
    """Return module and name of the function of a merge, and of the one that counts its totals where it needs them."""
    method = read_signature(MergeMethodUse, stage.merge_method)
    counts = [(method.module, f"{method.name}_totals")] if "totals" in method.supplied else []
    return [(method.module, method.name), *counts]


def check_merge(info: StepInfo, stage: Merge) -> Iterator[Problem]:
    """Yield everything about a merge that its method's signature can tell."""
    if bool(stage.models) == bool(stage.slices):
        message = "give exactly one of `models` and `slices`"
        yield make_problem(info.node.where, info.path, message, "`models` merges whole models, `slices` runs of layers")
    if stage.merge_method not in list_merge_methods():
        advice = suggest(stage.merge_method, list_merge_methods(), "methods")
        yield info.problem("merge_method", f"no method `{stage.merge_method}`", advice)
        return
    method = read_signature(MergeMethodUse, stage.merge_method)
    if "base" in method.supplied and stage.base_model is None:
        message = f"`{stage.merge_method}` works on differences and needs `base_model`"
        yield info.problem("merge_method", message, "name the model that the others were trained from")
    yield from _check_parameters(info, stage, method)


def _check_parameters(info: StepInfo, stage: Merge, method: Signature) -> Iterator[Problem]:
    """Yield unknown parameters at any level, and required ones that no level sets."""
    known = {option.removesuffix("_"): spec.required for option, spec in method.options.items()}
    given: set[str] = set()
    for where, parameters in _list_levels(stage):
        for name in parameters:
            given.add(name)
            if name not in known and name not in WITHOUT_EFFECT:
                at = follow_path(info.node, join_path(where, name))
                advice = suggest(name, known, f"parameters of {method.name}")
                yield make_problem(at.where, join_path(info.path, where, name), f"unknown parameter `{name}`", advice)
    for name, required in known.items():
        if required and name not in given:
            advice = f"set `{name}` under `parameters`, of each model or of all"
            yield info.problem("merge_method", f"`{method.name}` needs the parameter `{name}`", advice)


def _list_levels(stage: Merge) -> Iterator[tuple[str, dict[str, object]]]:
    yield "parameters", stage.parameters
    for i, model in enumerate(stage.models):
        yield f"models.{i}.parameters", model.parameters
    for i, piece in enumerate(stage.slices):
        yield f"slices.{i}.parameters", piece.parameters
        for j, source in enumerate(piece.sources):
            yield f"slices.{i}.sources.{j}.parameters", source.parameters
