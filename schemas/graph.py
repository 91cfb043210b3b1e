"""A step as the checks see it: its validated stage, its functions, its references resolved to steps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.errors import Problem, RecipeError
from schemas.expand import Unit, preset_names
from schemas.limits import MAX_PROBLEMS
from schemas.names import Names, resolve
from schemas.plan import BranchOf, Until
from schemas.slots import Slot, bind_slots, references
from schemas.stages.base import BaseStage
from schemas.stages.union import KINDS
from schemas.suggestions import suggest
from schemas.tree import Mark, Node, index_of, join, problem
from schemas.validation import coerced, follow, problems_of

NOWHERE = Mark("", 1, 1)
SINGLES = {KINDS["evaluate"]: "gate", KINDS["preference"]: "loss"}
"""Key of a kind that takes a list, or a single entry without brackets."""


@dataclass(frozen=True)
class Port:
    """A reference of a step and what it means."""

    path: str
    """Dotted path of the field."""
    text: str
    """As written."""
    accepts: tuple[str, ...]
    """Artifact types that fit."""
    steps: tuple[str, ...] = ()
    """Steps it may come from, latest first; empty for an outside source."""
    output: str | None = None
    """Named output; None is the first."""
    source: str | None = None
    """The reference, when it comes from outside."""
    type: str = ""
    """Artifact type that is received."""
    mark: Mark = NOWHERE
    """Where it is written."""


@dataclass(frozen=True)
class StepInfo:
    """Everything known about a step before it has a key."""

    name: str
    origin: str
    path: str
    node: Node
    stage: BaseStage
    slots: tuple[Slot, ...]
    names: Names
    ports: tuple[Port, ...] = ()
    after: tuple[str, ...] = ()
    unless: tuple[Until, ...] = ()
    branch_of: tuple[BranchOf, ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()

    def problem(self, where: str, message: str, advice: str = "") -> Problem:
        """What is wrong at a field of the step, by its dotted path, with its place in the file."""
        return problem(follow(self.node, where).mark, join(self.path, where), message, advice)

    def dump(self) -> dict[str, Any]:
        """The stage as plain values, options of its functions filled in."""
        dumped = self.stage.model_dump(mode="json", by_alias=True)
        for slot in self.slots:
            _place(dumped, slot.path).update(slot.values)
        return dumped

    @property
    def needs(self) -> tuple[str, ...]:
        """Steps that must have ended before this one."""
        upstream = [s for p in self.ports for s in p.steps] + [*self.after] + [u.step for u in self.unless]
        return tuple(dict.fromkeys(upstream + [b.step for b in self.branch_of]))


def info_of(unit: Unit, folders: tuple[Path, ...], problems: list[Problem]) -> StepInfo | None:
    """Validate a step by itself; what is wrong is added to `problems`, and None returned."""
    kind = _kind(unit, problems)
    if kind is None:
        return None
    node = unit.node
    key = SINGLES.get(kind)
    if key is not None and (alone := node.get(key)) is not None and (alone.is_map or isinstance(alone.value, str)):
        node = node.with_value({**node.value, key: alone.with_value([alone])})
    try:
        stage = kind.model_validate(node.plain())
    except ValidationError as error:
        problems += _with_preset_advice(problems_of(error, node, unit.path, kind), node)
        return None
    wrong = list(islice(coerced(node, stage.model_dump(by_alias=True), unit.path), MAX_PROBLEMS))
    slots, more = bind_slots(stage, node, unit.path, folders)
    problems += wrong + more
    if wrong or more:
        return None
    info = StepInfo(unit.name, unit.stage, unit.path, node, stage, tuple(slots), unit.names, unless=unit.unless)
    return with_parts(info, ports=tuple(_ports(info, problems)), after=_after(info, problems))


def _ports(info: StepInfo, problems: list[Problem]) -> Iterator[Port]:
    for where, reference in references(info.stage, list(info.slots)):
        if len(problems) > MAX_PROBLEMS:
            return
        port = resolved(info, where, reference, problems)
        if port is not None:
            yield port


def with_parts(info: StepInfo, **parts: Any) -> StepInfo:
    """A copy with some parts replaced."""
    return StepInfo(**{**info.__dict__, **parts})


def resolved(info: StepInfo, where: str, reference: Any, problems: list[Problem]) -> Port | None:
    """The port of one reference; None, with a problem added, when it means nothing."""
    mark = follow(info.node, where).mark
    try:
        found = resolve(str(reference), info.names, mark, join(info.path, where))
    except RecipeError as error:
        problems += error.problems
        return None
    kind = reference.outside or reference.accepts[0] if found.source else ""
    return Port(where, str(reference), reference.accepts, found.steps, found.output, found.source, kind, mark)


def _with_preset_advice(found: list[Problem], node: Node) -> list[Problem]:
    """An rl stage without an algorithm lacks several slots: say once how to fill them all."""
    if node.get("kind") is None or node.value["kind"].value != "rl" or node.get("algorithm") is not None:
        return found
    slots = ("`advantage`", "`ratio`", "`policy_loss`", "`loss_aggregation`")
    advice = f"fill all slots at once: `algorithm: grpo` ({', '.join(preset_names())})"
    return [replace(p, advice=advice) if p.message.startswith(slots) and "missing" in p.message else p for p in found]


def _kind(unit: Unit, problems: list[Problem]) -> type[BaseStage] | None:
    node = unit.node.get("kind")
    if node is None:
        advice = f"add `kind:`; kinds: {', '.join(KINDS)}"
        problems.append(problem(unit.node.where, unit.path, "`kind` is missing", advice))
        return None
    if not isinstance(node.value, str) or node.value not in KINDS:
        said = f"`{node.plain()}` is no kind" if not (node.is_map or node.is_list) else "a kind is one word"
        problems.append(problem(node.mark, join(unit.path, "kind"), said, suggest(str(node.value), KINDS, "kinds")))
        return None
    return KINDS[node.value]


def _after(info: StepInfo, problems: list[Problem]) -> tuple[str, ...]:
    steps: list[str] = []
    for index, word in enumerate(info.stage.after):
        if len(problems) > MAX_PROBLEMS:
            break
        found = resolved_steps(info, word)
        steps += found
        if not found:
            node = follow(info.node, f"after.{index}")
            words = dict.fromkeys([w for w in info.names if not w.startswith("previous.")])
            advice = suggest(word, words, "stages")
            problems.append(problem(node.mark, join(info.path, "after", index), f"no stage `{word}`", advice))
    return tuple(dict.fromkeys(steps))


def resolved_steps(info: StepInfo, word: str) -> tuple[str, ...]:
    """All steps that a word stands for where only their order matters: variants, iterations, a whole loop."""
    target = info.names.get(word)
    if target is not None and target.steps:
        return target.steps
    return tuple(s for w, t in info.names.items() if w.startswith(f"{word}.") for s in t.steps if s in info.names)


def _place(dumped: Any, path: str) -> Any:
    """The value at a dotted path of a dump; keys may hold dots themselves."""
    parts = path.split(".")
    while parts:
        for count in range(len(parts), 0, -1):
            key: Any = ".".join(parts[:count])
            if isinstance(dumped, list) and (index := index_of(key, len(dumped))) is not None:
                key = index
            elif not isinstance(dumped, dict) or key not in dumped:
                continue
            dumped, parts = dumped[key], parts[count:]
            break
        else:
            raise KeyError(path)
    return dumped
