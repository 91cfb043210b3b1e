"""A step before it has a key: its validated stage, its functions, its references resolved to steps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.base import JsonObject
from schemas.data_files import is_data_file
from schemas.errors import Problem, RecipeError
from schemas.expansion.expand import PREFERENCE_LOSSES, Unit, find_presets, list_preset_slots
from schemas.expansion.names import Names, resolve_reference
from schemas.plan import BranchOf, Until
from schemas.references import TABLE_TYPES
from schemas.source.limits import MAX_PROBLEMS
from schemas.source.tree import Mark, Node, join_path, make_problem, parse_index
from schemas.source.validation import convert_errors, find_coercions, follow_path
from schemas.stages.base import BaseStage
from schemas.stages.union import KINDS, traits_of
from schemas.steps.chat_template import read_chat_template
from schemas.steps.slots import Slot, bind_slots, find_references
from schemas.suggestions import find_nearest, suggest

NOWHERE = Mark("", 1, 1)
KIND_WORDS = {
    **{loss: f"`kind: preference` and `loss: {loss}`" for loss in PREFERENCE_LOSSES},
    **dict.fromkeys(("finetune", "fine_tune", "finetuning", "train", "training"), "`kind: sft`"),
    **dict.fromkeys(("lora", "qlora", "peft"), "`kind: sft` and `use_peft: true`"),
    "generate": "`kind: synthesize`",
    "reward": "`kind: reward_model`",
    "benchmark": "`kind: evaluate`",
}
"""How to write what is not a kind, by words that are used for it."""


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

    @property
    def content(self) -> tuple[object, ...]:
        """What is received; ports with equal content receive the same artifact."""
        return self.steps, self.output, self.source


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
        """Return a problem at a field of the step, by its dotted path, with its place in the file."""
        return make_problem(follow_path(self.node, where).mark, join_path(self.path, where), message, advice)

    def dump(self) -> JsonObject:
        """Return the stage as plain values, options of its functions filled in."""
        dumped = self.stage.model_dump(mode="json", by_alias=True)
        for slot in self.slots:
            find_place(dumped, slot.path).update(slot.values)
        return dumped

    @property
    def needs(self) -> tuple[str, ...]:
        """Steps that must have ended before this one."""
        upstream = [s for p in self.ports for s in p.steps] + [*self.after] + [u.step for u in self.unless]
        return tuple(dict.fromkeys(upstream + [b.step for b in self.branch_of]))


def validate_step(unit: Unit, folders: tuple[Path, ...], problems: list[Problem]) -> StepInfo | None:
    """Validate a step by itself; return None and add problems if it is invalid."""
    kind = _find_kind(unit, problems)
    if kind is None:
        return None
    node = unit.node
    for key in kind.single_keys:
        if (entry := node.get(key)) is not None and (entry.is_map or isinstance(entry.value, str)):
            node = node.with_value({**node.value, key: entry.with_value([entry])})
    try:
        stage = kind.model_validate(node.plain())
    except ValidationError as error:
        problems += _merge_missing_slots(convert_errors(error, node, unit.path, kind), node)
        return None
    wrong = list(islice(find_coercions(node, stage.model_dump(by_alias=True), unit.path), MAX_PROBLEMS))
    slots, more = bind_slots(stage, node, unit.path, folders)
    problems += wrong + more
    if wrong or more:
        return None
    stage = read_chat_template(stage, node, unit.path, folders, problems)
    info = StepInfo(unit.name, unit.stage, unit.path, node, stage, tuple(slots), unit.names, unless=unit.unless)
    return replace_parts(info, ports=tuple(_resolve_ports(info, problems)), after=_resolve_after(info, problems))


def _resolve_ports(info: StepInfo, problems: list[Problem]) -> Iterator[Port]:
    for where, reference in find_references(info.stage, list(info.slots)):
        if len(problems) > MAX_PROBLEMS:
            return
        port = resolve_port(info, where, reference, problems)
        if port is not None:
            yield port


def replace_parts(info: StepInfo, **parts: Any) -> StepInfo:
    """Return a copy with some parts replaced."""
    return StepInfo(**{**info.__dict__, **parts})


def resolve_port(info: StepInfo, where: str, reference: Any, problems: list[Problem]) -> Port | None:
    """Return the port of one reference; None, with a problem added, when it means nothing."""
    mark = follow_path(info.node, where).mark
    try:
        resolved = resolve_reference(str(reference), info.names, mark, join_path(info.path, where))
    except RecipeError as error:
        problems += error.problems
        return None
    kind = reference.outside or reference.accepts[0] if resolved.source else ""
    if kind not in ("", "directory") and (resolved.source or "").startswith("path:") and is_data_file(str(reference)):
        advice = "convert it with a stage of kind data and name that stage, or name a folder"
        problems.append(make_problem(mark, join_path(info.path, where), "a file of rows cannot be read here", advice))
        return None
    if kind in TABLE_TYPES and (resolved.source or "").startswith("path:") and str(reference).endswith(".gguf"):
        advice = "rows are in files such as rows.jsonl, or in a folder"
        problems.append(make_problem(mark, join_path(info.path, where), "a file of a model holds no rows", advice))
        return None
    return Port(where, str(reference), reference.accepts, resolved.steps, resolved.output, resolved.source, kind, mark)


def _merge_missing_slots(problems: list[Problem], node: Node) -> list[Problem]:
    """Return the problems of an rl stage with one for all slots that are missing, which says how to fill them."""
    kind = node.get("kind")
    if kind is None or "algorithm" not in traits_of(str(kind.value)).model_fields or node.get("algorithm") is not None:
        return problems
    of = traits_of(str(kind.value))
    messages = {f"`{slot}` is missing": f"`{slot}`" for slot in list_preset_slots(of)}
    missing = [problem for problem in problems if problem.message in messages]
    if not missing:
        return problems
    names = ", ".join(messages[problem.message] for problem in missing)
    advice = f"`algorithm: {of.usual_preset}` fills them all; algorithms: {', '.join(find_presets(of))}"
    merged = replace(missing[0], message=f"`algorithm` is missing, or its parts {names}", advice=advice)
    return [merged if problem is missing[0] else problem for problem in problems if problem not in missing[1:]]


def _find_kind(unit: Unit, problems: list[Problem]) -> type[BaseStage] | None:
    node = unit.node.get("kind")
    if node is None:
        advice = f"add `kind:`; kinds: {', '.join(KINDS)}"
        others = {target.steps[0] for word, target in unit.names.items() if target.steps} - {unit.name}
        if (near := find_nearest(unit.stage, others)) is not None:
            advice = f"if it is to change the stage `{near}`, write that name; otherwise {advice}"
        problems.append(make_problem(unit.node.where, unit.path, "`kind` is missing", advice))
        return None
    if not isinstance(node.value, str) or node.value not in KINDS:
        message = f"`{node.plain()}` is no kind" if not (node.is_map or node.is_list) else "a kind is one word"
        advice = _advise_on_kind(str(node.value).lower()) or suggest(str(node.value), KINDS, "kinds")
        problems.append(make_problem(node.mark, join_path(unit.path, "kind"), message, advice))
        return None
    return KINDS[node.value]


def _advise_on_kind(word: str) -> str:
    """Return how the work is written that another word than a kind names; empty for an unknown word."""
    for kind, model in KINDS.items():
        if "algorithm" in model.model_fields and word in find_presets(model):
            return f"write `kind: {kind}` and `algorithm: {word}`"
    if word in ("export", "push", "publish", "upload", "save"):
        return "no stage: after the run write `posttrain export hf STEP FOLDER`, see docs/publishing.md"
    return f"write {KIND_WORDS[word]}" if word in KIND_WORDS else ""


def _resolve_after(info: StepInfo, problems: list[Problem]) -> tuple[str, ...]:
    steps: list[str] = []
    for index, word in enumerate(info.stage.after):
        if len(problems) > MAX_PROBLEMS:
            break
        resolved = resolve_steps(info, word)
        steps += resolved
        if not resolved:
            node = follow_path(info.node, f"after.{index}")
            words = dict.fromkeys([w for w in info.names if not w.startswith("previous.")])
            advice = suggest(word, words, "stages")
            problems.append(make_problem(node.mark, join_path(info.path, "after", index), f"no stage `{word}`", advice))
    return tuple(dict.fromkeys(steps))


def resolve_steps(info: StepInfo, word: str) -> tuple[str, ...]:
    """Return all steps that a word stands for where only their order matters: variants, iterations, a whole loop."""
    target = info.names.get(word)
    if target is not None and target.steps:
        return target.steps
    return tuple(s for w, t in info.names.items() if w.startswith(f"{word}.") for s in t.steps if s in info.names)


def find_place(dumped: Any, path: str) -> Any:
    """Return the value at a dotted path of a dump; keys may hold dots themselves."""
    parts = path.split(".")
    while parts:
        for count in range(len(parts), 0, -1):
            key: Any = ".".join(parts[:count])
            if isinstance(dumped, list) and (index := parse_index(key, len(dumped))) is not None:
                key = index
            elif not isinstance(dumped, dict) or key not in dumped:
                continue
            dumped, parts = dumped[key], parts[count:]
            break
        else:
            raise KeyError(path)
    return dumped
