"""From stages as written to the steps they stand for: variables, defaults, presets, matrix and repeat."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.entries import Entry, check_name, targets, variants
from schemas.loops import Loop, parse_loop
from schemas.names import Names, Target
from schemas.nearest import suggest
from schemas.plan import Until
from schemas.source import MAX_NODES, read_source
from schemas.stages.union import KINDS
from schemas.tree import Node, join, merge, refuse
from schemas.variables import substitute

MAX_STEPS = 1000
PRESETS = Path(__file__).resolve().parent.parent / "recipes" / "algorithms"
# Ports that take several models: a bare matrix word there means all its variants.
FANS = {"evaluate": "models", "merge": "models", "python": "inputs"}


@dataclass(frozen=True)
class Unit:
    """One step to be: its stage with everything put in, and what words mean in it."""

    name: str
    stage: str
    path: str
    node: Node
    names: Names
    unless: tuple[Until, ...] = ()


def expand(stages: Node, defaults: Node | None, variables: dict[str, Node]) -> list[Unit]:
    """All steps, in the order in which they are written. Raises RecipeError."""
    if not stages.is_map or not stages.value:
        raise refuse(stages.where, "stages", "wants a map of stage names to stages", "as `base: {kind: init}`")
    scope = {"vars": variables}
    parts: list[tuple[str, list[Entry] | Loop]] = []
    names: dict[str, Target] = {}
    for name, node in stages.value.items():
        path = join("stages", name)
        check_name(name, node, path)
        made = variants(name, node, path, scope) if node.get("repeat") is None else parse_loop(name, node, path, scope)
        names.update(made.outer() if isinstance(made, Loop) else targets(name, made))
        parts.append((name, made))
    units: list[Unit] = []
    for name, made in parts:
        if isinstance(made, Loop):
            units += _unrolled(made, names, defaults)
        else:
            units += [Unit(e.word, name, e.path, _complete(e, names, defaults), names) for e in made]
    _bound(units, stages)
    return units


def _unrolled(loop: Loop, names: Names, defaults: Node | None) -> list[Unit]:
    units = []
    for number, stages in enumerate(loop.rounds, start=1):
        inner = {**names, **dict(loop.inner(number))}
        unless: tuple[Until, ...] = ()
        if (end := loop.until) is not None:
            earlier = [loop.prefix(i) + end.word for i in range(1, number)]
            unless = tuple(Until(step=s, metric=end.metric, op=end.op, value=end.value) for s in earlier)
        for stage, entries in stages.items():
            for e in entries:
                node = _complete(e, inner, defaults)
                units.append(Unit(loop.prefix(number) + e.word, f"{loop.name}.{stage}", e.path, node, inner, unless))
    return units


def _complete(entry: Entry, names: Names, defaults: Node | None) -> Node:
    """The stage on top of its kind's defaults and its algorithm's preset, with matrix words spread out."""
    node = entry.node
    kind = node.get("kind")
    word = kind.value if kind is not None and isinstance(kind.value, str) else ""
    if defaults is not None and (base := defaults.get(word)) is not None:
        node = merge(substitute(base, entry.scope, join("defaults", word)), node)
    if word == "rl" and (algorithm := node.get("algorithm")) is not None and algorithm.value is not None:
        node = merge(preset(algorithm, join(entry.path, "algorithm")), node)
    return _spread(node, FANS[word], names) if word in FANS else node


def preset(algorithm: Node, path: str) -> Node:
    """The slots of a named algorithm. Raises RecipeError."""
    known = preset_names()
    if algorithm.value not in known:
        raise refuse(algorithm.mark, path, f"no algorithm `{algorithm.value}`",
                     suggest(str(algorithm.value), known, "algorithms"))  # fmt: skip
    return read_source(known[algorithm.value], f"recipes/algorithms/{algorithm.value}.yaml")


def preset_names() -> Mapping[str, Path]:
    """Every preset: name to file."""
    return {p.stem: p for p in sorted(PRESETS.glob("*.yaml"))}


def _spread(node: Node, port: str, names: Names) -> Node:
    models = node.get(port)
    if models is None:
        return node
    if models.is_map:
        spread: object = {k: c for key, child in models.value.items() for k, c in _fan(key, child, child, names)}
    elif models.is_list:
        spread = [c for child in models.value for _, c in _fan("", child, child.get("model"), names)]
    else:
        return node
    return node.with_value({**node.value, port: models.with_value(spread)})


def _fan(key: str, child: Node, reference: Node | None, names: Names) -> list[tuple[str, Node]]:
    """One entry per variant where `reference` is the bare word of a matrix, else the entry itself."""
    target = names.get(reference.value) if reference is not None and isinstance(reference.value, str) else None
    if reference is None or target is None or not target.is_fan:
        return [(key, child)]
    made = []
    for step in target.steps:
        named = reference.with_value(_word_of(step, names))
        whole = named if child is reference else child.with_value({**child.value, "model": named})
        made.append((f"{key}@{step.partition('@')[2]}", whole))
    return made


def _word_of(step: str, names: Names) -> str:
    """The word that means this one variant here: its own name, or inside a loop the sibling's."""
    if step in names:
        return step
    return next(word for word, target in names.items() if target.steps == (step,) and not target.is_fan)


def check_defaults(defaults: Node | None) -> None:
    """Refuse defaults that are for no kind. Raises RecipeError."""
    if defaults is None:
        return
    if not defaults.is_map:
        raise refuse(defaults.where, "defaults", "wants a map of kinds to keys", "as `defaults: {sft: {...}}`")
    for kind, child in defaults.value.items():
        path = join("defaults", kind)
        if kind not in KINDS:
            raise refuse(child.where, path, f"`{kind}` is no kind", suggest(kind, KINDS, "kinds"))
        if not child.is_map:
            raise refuse(child.where, path, "wants a map of keys", "as `defaults: {sft: {learning_rate: 1e-4}}`")


def _bound(units: list[Unit], stages: Node) -> None:
    if len(units) > MAX_STEPS:
        raise refuse(stages.where, "stages", f"{len(units)} steps are too many", f"at most {MAX_STEPS}")
    whole = stages.with_value([u.node for u in units])
    if whole.larger_than(3 * MAX_NODES):
        raise refuse(stages.where, "stages", "the recipe becomes too large", "variables, matrix or loops multiply here")
