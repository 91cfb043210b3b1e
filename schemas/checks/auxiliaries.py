"""Rules for the critic and the auxiliary models of an rl stage."""

import re
from collections.abc import Iterator

from schemas.addresses import supplies
from schemas.auxiliary import NEXT, TargetUse
from schemas.errors import Problem
from schemas.signatures import may_be_auxiliary
from schemas.source.tree import join_path
from schemas.stages.rl import Rl
from schemas.steps.slots import Slot
from schemas.steps.step_info import StepInfo
from schemas.suggestions import suggest
from schemas.supplied import MOVING
from schemas.use import RewardShapingUse

NAME = re.compile(r"[a-z][a-z0-9_]*")
TAKEN = frozenset(name.removesuffix("_T") for name in MOVING | RewardShapingUse.asks) | {
    "return",
    "log_ratio",
    "w",
    "factor",
    "dropped",
    "learn",
    "owner",
    "next",
    "next_mean",
    "critic",
    "controller",
    "watch",
    "loss",
    "rng",
    "rows",
    "batch",
    "scores",
    "reward",
}
"""Names with another meaning in batches or metrics."""
ENDINGS = ("_end", "_max", "_mean")


def check_auxiliary_models(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield the problems of the critic and the auxiliary models."""
    for rule in (
        _check_names,
        _check_columns,
        _check_options,
        _check_targets,
        _check_use,
        _check_outputs,
        _check_start,
    ):
        yield from rule(info, stage)


def _list_columns_by_model(stage: Rl) -> dict[str, list[str]]:
    """Return the columns of sampled tokens that each auxiliary model computes, without the `_T`."""
    return {name: block.columns(name) for name, block in stage.auxiliary_models.items()}


def _list_columns(stage: Rl) -> list[str]:
    return [column for columns in _list_columns_by_model(stage).values() for column in columns]


def _check_names(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for name in stage.auxiliary_models:
        stem = next((name.removesuffix(e) for e in ENDINGS if name.endswith(e)), None)
        where = join_path("auxiliary_models", name)
        if not NAME.fullmatch(name) or name.startswith("lp_"):
            advice = "use lower-case letters, digits and `_`; `lp_` is reserved for references"
            yield info.problem(where, f"`{name}` cannot name a column", advice)
        elif name in TAKEN or stem in stage.auxiliary_models:
            message = f"a column `{name}_T` exists already"
            yield info.problem(where, message, f"choose another name, for example `my_{name}`")


def _check_columns(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield functions with a parameter for a column that neither the loop nor an auxiliary model computes."""
    columns_in_stage = {f"{column}_{unit}" for column in _list_columns(stage) for unit in "TP"}
    columns_in_stage |= {
        f"{name}_end_{unit}" for name, block in stage.auxiliary_models.items() if block.head == "state" for unit in "TP"
    }
    for slot in info.slots:
        kind = type(slot.use)
        parameters = slot.signature.supplied[len(kind.takes or ()) :]
        for name in parameters if "auxiliary_T" in kind.asks else ():
            if not supplies(kind, name) and may_be_auxiliary(kind, name) and name not in columns_in_stage:
                message = f"`{slot.use.use}` needs `{name}`, which no auxiliary model of this stage computes"
                yield info.problem(
                    slot.path, message, suggest(name, sorted({*kind.asks, *columns_in_stage}), "columns")
                )


def _check_options(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield options `of` that name no auxiliary model."""
    for slot in _find_readers(info):
        name = slot.values.get("of")
        if isinstance(name, str) and name not in _list_columns(stage):
            advice = (
                suggest(name, _list_columns(stage), "auxiliary_models")
                if stage.auxiliary_models
                else "add it to `auxiliary_models`"
            )
            yield info.problem(join_path(slot.path, "of"), f"no auxiliary model `{name}` in this stage", advice)


def _find_readers(info: StepInfo) -> Iterator[Slot]:
    return (slot for slot in info.slots if "auxiliary_T" in slot.signature.supplied)


def _check_targets(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    targets = {slot.path: slot for slot in info.slots if isinstance(slot.use, TargetUse)}
    for name, block in stage.auxiliary_models.items():
        where = f"auxiliary_models.{name}"
        slot = targets.get(f"{where}.target")
        if slot is None:
            continue
        ahead = [word for word in NEXT if word in slot.signature.supplied]
        if ahead and block.head not in ("state", "action"):
            message = f"`{slot.use.use}` needs the value of the next state, which `head: {block.head}` does not have"
            yield info.problem(slot.path, message, "write `head: state` or `head: action`")
        elif block.head == "state" and "next_mean_T" in ahead:
            message = f"`{slot.use.use}` needs the mean over actions, which `head: state` does not have"
            yield info.problem(slot.path, message, "write `head: action`, or `target: temporal_difference`")
        elif block.target_network is not None and not ahead:
            message = f"`target_network` has no effect: `{slot.use.use}` does not use later values"
            yield info.problem(
                join_path(where, "target_network"), message, "remove it, or write `target: temporal_difference`"
            )


def _check_use(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield auxiliary models that are neither read nor published."""
    read = {branch.of for branch in stage.advantage_streams}
    read |= {str(slot.values.get("of")) for slot in _find_readers(info)}
    for name, block in stage.auxiliary_models.items():
        own = f"auxiliary_models.{name}."
        columns = {n for slot in info.slots if not slot.path.startswith(own) for n in slot.signature.supplied}
        mine = {f"{column}_{unit}" for column in [*block.columns(name), f"{name}_end"] for unit in "TP"}
        reads_all = any("auxiliary_T" in s.signature.supplied and "of" not in s.signature.options for s in info.slots)
        if not (block.publish or reads_all or read & set(block.columns(name)) or columns & mine):
            message = f"`{name}_T` is neither read nor published"
            advice = (
                "read it, for example with `{use: potential, of: "
                + name
                + "}` in `advantage`, or write `publish: true`"
            )
            yield info.problem(join_path("auxiliary_models", name), message, advice)


def _check_outputs(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    types = ["value_model"] if stage.critic is not None and stage.critic.publish else []
    for name, block in stage.auxiliary_models.items():
        if block.publish and block.type in types:
            message = f"two outputs of this stage would have the name `{block.type}`"
            advice = "publish one of them here and the other from a separate stage"
            yield info.problem(f"auxiliary_models.{name}.publish", message, advice)
        types += [block.type] if block.publish else []


def _check_start(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Yield models that start a `head: likelihood` and are not language models."""
    for name, block in stage.auxiliary_models.items():
        for port in (p for p in info.ports if p.path == f"auxiliary_models.{name}.model"):
            if block.head == "likelihood" and port.type in ("value_model", "reward_model"):
                message = f"`head: likelihood` needs a language model, but `{port.text}` is a {port.type}"
                yield info.problem(port.path, message, "give a policy, or a process reward model with the same head")
