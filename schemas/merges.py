"""A merge stage against its method: does the method exist, does it know the parameters, has it what it needs."""

from collections.abc import Iterator

from schemas.errors import Problem
from schemas.graph import StepInfo
from schemas.signatures import Signature, names, signature
from schemas.stages.merge import Merge
from schemas.suggestions import suggest
from schemas.tree import join, problem
from schemas.use import MergeMethodUse
from schemas.validation import follow

# Parameters of mergekit that change how it computes and not what.
WITHOUT_EFFECT = {"int8_mask"}


def methods() -> list[str]:
    """Every merge method: functions whose first parameter is the tensors; others in the module only help."""
    return [n for n in names(MergeMethodUse) if signature(MergeMethodUse, n).supplied[:1] == ("tensors",)]


def merge_functions(stage: Merge) -> list[tuple[str, str]]:
    """Return module and name of the function of a merge, and of the one that counts its totals where it needs them."""
    method = signature(MergeMethodUse, stage.merge_method)
    counts = [(method.module, f"{method.name}_totals")] if "totals" in method.supplied else []
    return [(method.module, method.name), *counts]


def merge_problems(info: StepInfo, stage: Merge) -> Iterator[Problem]:
    """Everything about a merge that its method's signature can tell."""
    if bool(stage.models) == bool(stage.slices):
        said = "give exactly one of `models` and `slices`"
        yield problem(info.node.where, info.path, said, "`models` merges whole models, `slices` runs of layers")
    if stage.merge_method not in methods():
        advice = suggest(stage.merge_method, methods(), "methods")
        yield info.problem("merge_method", f"no method `{stage.merge_method}`", advice)
        return
    method = signature(MergeMethodUse, stage.merge_method)
    if "base" in method.supplied and stage.base_model is None:
        said = f"`{stage.merge_method}` works on differences and needs `base_model`"
        yield info.problem("merge_method", said, "name the model that the others were trained from")
    yield from _parameters(info, stage, method)


def _parameters(info: StepInfo, stage: Merge, method: Signature) -> Iterator[Problem]:
    """Unknown parameters at any level, and required ones that no level sets."""
    known = {option.removesuffix("_"): spec.required for option, spec in method.options.items()}
    given: set[str] = set()
    for where, parameters in _levels(stage):
        for name in parameters:
            given.add(name)
            if name not in known and name not in WITHOUT_EFFECT:
                at = follow(info.node, join(where, name))
                advice = suggest(name, known, f"parameters of {method.name}")
                yield problem(at.where, join(info.path, where, name), f"unknown parameter `{name}`", advice)
    for name, required in known.items():
        if required and name not in given:
            advice = f"set `{name}` under `parameters`, of each model or of all"
            yield info.problem("merge_method", f"`{method.name}` needs the parameter `{name}`", advice)


def _levels(stage: Merge) -> Iterator[tuple[str, dict[str, object]]]:
    yield "parameters", stage.parameters
    for i, model in enumerate(stage.models):
        yield f"models.{i}.parameters", model.parameters
    for i, piece in enumerate(stage.slices):
        yield f"slices.{i}.parameters", piece.parameters
        for j, source in enumerate(piece.sources):
            yield f"slices.{i}.sources.{j}.parameters", source.parameters
