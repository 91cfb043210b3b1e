"""What an rl stage can say of networks beside its policy that cannot be meant: refused at its place."""

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
"""Words that mean something else in a batch or in the curves."""
ENDINGS = ("_end", "_max", "_mean")


def check_auxiliary_models(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """Every contradiction about the critic's and the auxiliaries' words."""
    for rule in (_names, _columns, _options, _ahead, _unused, _outputs, _start):
        yield from rule(info, stage)


def _given(stage: Rl) -> dict[str, list[str]]:
    """Columns of sampled tokens that each auxiliary gives, without the `_T`."""
    return {name: block.columns(name) for name, block in stage.auxiliary_models.items()}


def _all(stage: Rl) -> list[str]:
    return [column for columns in _given(stage).values() for column in columns]


def _names(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    for name in stage.auxiliary_models:
        stem = next((name.removesuffix(e) for e in ENDINGS if name.endswith(e)), None)
        where = join_path("auxiliary_models", name)
        if not NAME.fullmatch(name) or name.startswith("lp_"):
            advice = "small letters, digits and `_`, not `lp_`, which belongs to references"
            yield info.problem(where, f"`{name}` cannot name a column", advice)
        elif name in TAKEN or stem in stage.auxiliary_models:
            message = f"`{name}_T` is another column already"
            yield info.problem(where, message, f"call it something else, as `my_{name}`")


def _columns(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """A function that asks for a column which neither the loop nor an auxiliary gives."""
    known = {f"{column}_{unit}" for column in _all(stage) for unit in "TP"}
    known |= {
        f"{name}_end_{unit}" for name, block in stage.auxiliary_models.items() if block.head == "state" for unit in "TP"
    }
    for slot in info.slots:
        kind = type(slot.use)
        asked = slot.signature.supplied[len(kind.takes or ()) :]
        for name in asked if "auxiliary_T" in kind.asks else ():
            if not supplies(kind, name) and may_be_auxiliary(kind, name) and name not in known:
                message = (
                    f"`{slot.use.use}` asks for `{name}`, which neither the loop nor an auxiliary of this stage gives"
                )
                yield info.problem(slot.path, message, suggest(name, sorted({*kind.asks, *known}), "columns"))


def _options(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """An option `of` of a function that asks for auxiliaries by name names one."""
    for slot in _asking(info):
        name = slot.values.get("of")
        if isinstance(name, str) and name not in _all(stage):
            advice = (
                suggest(name, _all(stage), "auxiliary_models")
                if stage.auxiliary_models
                else "add it to `auxiliary_models`"
            )
            yield info.problem(join_path(slot.path, "of"), f"no auxiliary `{name}` in this stage", advice)


def _asking(info: StepInfo) -> Iterator[Slot]:
    return (slot for slot in info.slots if "auxiliary_T" in slot.signature.supplied)


def _ahead(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    targets = {slot.path: slot for slot in info.slots if isinstance(slot.use, TargetUse)}
    for name, block in stage.auxiliary_models.items():
        where = f"auxiliary_models.{name}"
        slot = targets.get(f"{where}.target")
        if slot is None:
            continue
        ahead = [word for word in NEXT if word in slot.signature.supplied]
        if ahead and block.head not in ("state", "action"):
            message = f"`{slot.use.use}` looks at the state after a token, and `head: {block.head}` has no value of it"
            yield info.problem(slot.path, message, "write `head: state` or `head: action`")
        elif block.head == "state" and "next_mean_T" in ahead:
            message = f"`{slot.use.use}` takes the mean over actions, and `head: state` has none"
            yield info.problem(slot.path, message, "write `head: action`, or `target: temporal_difference`")
        elif block.target_network is not None and not ahead:
            message = f"`target_network` keeps a slow copy, and `{slot.use.use}` does not look ahead"
            yield info.problem(
                join_path(where, "target_network"), message, "leave it out, or write `target: temporal_difference`"
            )


def _unused(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """An auxiliary that nothing reads and that is not published only costs time."""
    read = {branch.of for branch in stage.advantage_streams}
    read |= {str(slot.values.get("of")) for slot in _asking(info)}
    for name, block in stage.auxiliary_models.items():
        own = f"auxiliary_models.{name}."
        asked = {n for slot in info.slots if not slot.path.startswith(own) for n in slot.signature.supplied}
        mine = {f"{column}_{unit}" for column in [*block.columns(name), f"{name}_end"] for unit in "TP"}
        whole = any("auxiliary_T" in s.signature.supplied and "of" not in s.signature.options for s in info.slots)
        if not (block.publish or whole or read & set(block.columns(name)) or asked & mine):
            message = f"nothing reads `{name}_T`, and it is not published"
            advice = (
                "name it in a part, as `{use: potential, of: " + name + "}` in `advantage`, or write `publish: true`"
            )
            yield info.problem(join_path("auxiliary_models", name), message, advice)


def _outputs(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    types = ["value_model"] if stage.critic is not None and stage.critic.publish else []
    for name, block in stage.auxiliary_models.items():
        if block.publish and block.type in types:
            message = f"two outputs of this stage would be called `{block.type}`"
            advice = "publish one of them here, and the other from a stage of its own"
            yield info.problem(f"auxiliary_models.{name}.publish", message, advice)
        types += [block.type] if block.publish else []


def _start(info: StepInfo, stage: Rl) -> Iterator[Problem]:
    """A log-ratio needs a language model, and a value model has none."""
    for name, block in stage.auxiliary_models.items():
        for port in (p for p in info.ports if p.path == f"auxiliary_models.{name}.model"):
            if block.head == "likelihood" and port.type in ("value_model", "reward_model"):
                message = f"`head: likelihood` needs a language model, and `{port.text}` is a {port.type}"
                yield info.problem(port.path, message, "give a policy, or a process reward model of the same head")
