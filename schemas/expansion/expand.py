"""Expansion of stages to steps: variables, defaults, presets, matrix and repeat."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from schemas.expansion.entries import (
    Entry,
    check_name,
    count_variants,
    expand_matrix,
    is_source,
    list_targets,
    read_source_stage,
    refuse_many,
)
from schemas.expansion.loops import Loop, parse_loop
from schemas.expansion.names import Names, Target
from schemas.package import ROOT
from schemas.plan import Until
from schemas.source.parser import read_source
from schemas.source.tree import Node, join_path, make_error, merge_nodes
from schemas.source.variables import Scope, substitute
from schemas.stages.base import BaseStage
from schemas.stages.rl import Rl
from schemas.stages.union import KINDS, traits_of
from schemas.suggestions import suggest

PREFERENCE_LOSSES = ("dpo", "ipo", "kto", "orpo", "simpo", "bco")
"""Losses on preference pairs, which are asked for as algorithms."""


@dataclass(frozen=True)
class Unit:
    """One planned step: its complete stage, and the targets of the names in it."""

    name: str
    stage: str
    path: str
    node: Node
    names: Names
    unless: tuple[Until, ...] = ()


def expand(stages: Node, defaults: Node | None, scope: Scope) -> list[Unit]:
    """Return all steps in the order of the recipe. Raise RecipeError."""
    if not stages.is_map or not stages.value:
        raise make_error(
            stages.where,
            "stages",
            "`stages` must be a map of stage names to stages",
            "for example `base: {kind: init}`",
        )
    parts: list[tuple[str, list[Entry] | Loop]] = []
    names: dict[str, Target] = {}
    count = 0
    for name, node in stages.value.items():
        if is_source(node):
            names[name] = Target(alias=read_source_stage(name, node, scope))
            continue
        expanded = _expand_part(name, node, scope, count, stages)
        names.update(expanded.outer() if isinstance(expanded, Loop) else list_targets(name, expanded))
        parts.append((name, expanded))
        count += expanded.steps if isinstance(expanded, Loop) else len(expanded)
        refuse_many(count, stages, "stages")
    completion = _Completion(names, defaults, {})
    units: list[Unit] = []
    for name, expanded in parts:
        if isinstance(expanded, Loop):
            units += _unroll(expanded, completion)
        else:
            units += [Unit(e.word, name, e.path, completion.of(e, names), names) for e in expanded]
    return units


def _expand_part(name: str, node: Node, scope: Scope, before: int, stages: Node) -> list[Entry] | Loop:
    """Return a stage's variants or its loop; `before` counts the steps so far. Raise RecipeError."""
    path = join_path("stages", name)
    check_name(name, node, path)
    if node.get("repeat") is not None:
        return parse_loop(name, node, path, scope)
    refuse_many(before + count_variants(node, path, scope), stages, "stages")
    return expand_matrix(name, node, path, scope)


def _unroll(loop: Loop, completion: "_Completion") -> list[Unit]:
    units = []
    for number, stages in enumerate(loop.rounds, start=1):
        inner = {**completion.names, **dict(loop.inner(number))}
        unless: tuple[Until, ...] = ()
        if (end := loop.until) is not None:
            earlier = [loop.prefix(i) + end.word for i in range(1, number)]
            unless = tuple(Until(step=s, metric=end.metric, op=end.op, value=end.value) for s in earlier)
        for stage, entries in stages.items():
            for e in entries:
                name = loop.prefix(number) + e.word
                units.append(Unit(name, f"{loop.name}.{stage}", e.path, completion.of(e, inner), inner, unless))
    return units


@dataclass(frozen=True)
class _Completion:
    """The settings below every stage: defaults of its kind, and presets, each of which is read once."""

    names: Names
    defaults: Node | None
    presets: dict[str, Node]

    def of(self, entry: Entry, names: Names) -> Node:
        """Return a stage merged over the defaults of its kind and its preset, with names of a matrix expanded."""
        node = entry.node
        kind = node.get("kind")
        word = kind.value if kind is not None and isinstance(kind.value, str) else ""
        if self.defaults is not None and (base := self.defaults.get(word)) is not None:
            node = merge_nodes(substitute(base, entry.scope, join_path("defaults", word)), node)
        traits = traits_of(word)
        algorithm = node.get("algorithm") if "algorithm" in traits.model_fields else None
        if algorithm is not None and algorithm.value is not None:
            path = join_path(entry.path, "algorithm")
            base = self._preset(traits, algorithm, path)
            entry.scope.allowance.take_tree(base, algorithm.mark, path)
            node = merge_nodes(base, node)
        return node if traits.fan_port is None else _spread_fans(node, traits.fan_port, names, entry)

    def _preset(self, kind: type[BaseStage], algorithm: Node, path: str) -> Node:
        if not isinstance(algorithm.value, str):
            raise make_error(algorithm.mark, path, "`algorithm` must be a name", "for example `algorithm: grpo`")
        name = f"{kind.presets}/{algorithm.value}"
        if name not in self.presets:
            self.presets[name] = read_preset(kind, algorithm, path)
        return self.presets[name]


def read_preset(kind: type[BaseStage], algorithm: Node, path: str) -> Node:
    """Return the slots of a named algorithm of a kind. Raise RecipeError."""
    presets = find_presets(kind)
    if algorithm.value not in presets:
        advice = suggest(str(algorithm.value), presets, "algorithms")
        if str(algorithm.value).lower() in PREFERENCE_LOSSES:
            advice = f"it is a loss: `kind: preference` and `loss: {str(algorithm.value).lower()}`"
        raise make_error(algorithm.mark, path, f"no algorithm `{algorithm.value}`", advice)
    return read_source(presets[algorithm.value], f"{kind.presets}/{algorithm.value}.yaml")


def find_presets(kind: type[BaseStage] = Rl) -> Mapping[str, Path]:
    """Return the file of every preset of a kind by name."""
    return {p.stem: p for p in sorted((ROOT / kind.presets).glob("*.yaml"))}


def list_preset_slots(kind: type[BaseStage] = Rl) -> list[str]:
    """Return the required keys of a stage that presets fill, in the order of the stage."""
    usual = kind.usual_preset
    filled = read_source(find_presets(kind)[usual], f"{kind.presets}/{usual}.yaml").value
    return [name for name, field in kind.model_fields.items() if field.is_required() and name in filled]


def _spread_fans(node: Node, port: str, names: Names, entry: Entry) -> Node:
    models, words = node.get(port), _Words(names)
    if models is None:
        return node
    if models.is_map:
        fans = (_expand_fan(key, child, child, words) for key, child in models.value.items())
    elif models.is_list:
        fans = (_expand_fan("", child, child.get("model"), words) for child in models.value)
    else:
        return node
    spread: list[tuple[str, Node]] = []
    for fan in fans:
        entry.scope.allowance.take(len(fan), 0, models.mark, join_path(entry.path, port))
        spread += fan
    value = dict(spread) if models.is_map else [child for _, child in spread]
    return node.with_value({**node.value, port: models.with_value(value)})


class _Words:
    """The name that refers to one variant of a matrix in a scope."""

    def __init__(self, names: Names):
        self.names = names

    def of(self, step: str) -> str:
        """Return the variant's own name, or inside a loop the name of the variant of the same iteration."""
        return step if step in self.names else self._siblings[step]

    @cached_property
    def _siblings(self) -> dict[str, str]:
        single = [(t.steps[0], word) for word, t in self.names.items() if len(t.steps) == 1 and not t.is_fan]
        return dict(reversed(single))


def _expand_fan(key: str, child: Node, reference: Node | None, words: _Words) -> list[tuple[str, Node]]:
    """Return one entry per variant if `reference` is the name of a stage with a matrix, else the entry itself."""
    text = reference.value if reference is not None else None
    target = words.names.get(text) if isinstance(text, str) else None
    if reference is None or target is None or not target.is_fan:
        return [(key, child)]
    entries = []
    for step in target.steps:
        named = reference.with_value(words.of(step))
        entry = named if child is reference else child.with_value({**child.value, "model": named})
        entries.append((f"{key}@{step.partition('@')[2]}", entry))
    return entries


def check_defaults(defaults: Node | None) -> None:
    """Raise RecipeError for defaults of an unknown kind."""
    if defaults is None:
        return
    if not defaults.is_map:
        raise make_error(
            defaults.where,
            "defaults",
            "`defaults` must be a map of kinds to keys",
            "for example `defaults: {sft: {...}}`",
        )
    for kind, child in defaults.value.items():
        path = join_path("defaults", kind)
        if kind not in KINDS:
            raise make_error(child.where, path, f"no kind `{kind}`", suggest(kind, KINDS, "kinds"))
        if not child.is_map:
            raise make_error(
                child.where,
                path,
                f"the defaults of `{kind}` must be a map",
                "for example `defaults: {sft: {learning_rate: 1e-4}}`",
            )
