"""The stages of one scope (the recipe, or one iteration of a loop), with `matrix` multiplied out.

`sft` with `matrix: {lr: [0.1, 1], r: [2]}` becomes `sft@lr=0.1,r=2` and `sft@lr=1,r=2`; `${matrix.lr}` is the value.
"""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from schemas.expansion.names import Target
from schemas.references import SCHEMES
from schemas.source.limits import MAX_KEY, MAX_STEPS
from schemas.source.tree import Node, join_path, make_error
from schemas.source.variables import Scope, substitute, write_scalar

STAGE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
RESERVED = {*SCHEMES, "previous"}
MAX_VARIANTS = 256
LABEL = 40
"""Characters of a value in the name of its variant."""


@dataclass(frozen=True)
class Entry:
    """One variant of a stage: its name in the scope, its path in the recipe, and its node without variables."""

    word: str
    path: str
    node: Node
    scope: Scope


def check_name(name: str, node: Node, path: str) -> None:
    """Raise RecipeError for a name that references, files or servers do not support."""
    if name in RESERVED:
        raise make_error(node.where, path, f"`{name}` cannot name a stage", "the word is reserved for references")
    if not STAGE_NAME.fullmatch(name):
        advice = "use lower-case letters, digits and _, beginning with a letter, for example `cold_start`"
        raise make_error(node.where, path, f"`{name}` cannot name a stage", advice)
    if not node.is_map:
        advice = "for example `base: {kind: init}`, or a model from outside: `base: path:./model`"
        raise make_error(node.where, path, "a stage must be a map", advice)


def is_source(node: Node) -> bool:
    """Return whether a stage is not made by the recipe, but is a model from outside: `start: path:./model`."""
    return isinstance(node.value, str)


def read_source_stage(name: str, node: Node, scope: Scope) -> str:
    """Return the source that a stage is another name for. Raise RecipeError."""
    path = join_path("stages", name)
    check_name(name, node.with_value({}), path)
    text = substitute(node, scope, path).value
    if not isinstance(text, str) or text.partition(":")[0] not in SCHEMES:
        advice = "give one, for example `path:./model`, or `--set vars.model=path:./model` where the recipe says so"
        raise make_error(node.where, path, f"`{name}` needs a model from outside", advice)
    return text


def count_variants(node: Node, path: str, scope: Scope) -> int:
    """Return the number of steps of a stage without expanding it. Raise RecipeError."""
    matrix = node.get("matrix")
    if matrix is None:
        return 1
    axes = _read_axes(substitute(matrix, scope, join_path(path, "matrix")), join_path(path, "matrix"))
    return math.prod(len(values) for values in axes.values())


def refuse_many(count: int, node: Node, path: str) -> None:
    """Raise RecipeError if a recipe would have too many steps."""
    if count > MAX_STEPS:
        advice = f"at most {MAX_STEPS} steps are allowed after matrix and repeat are expanded"
        raise make_error(node.where, path, f"{count} steps are too many", advice)


def expand_matrix(name: str, node: Node, path: str, scope: Scope) -> list[Entry]:
    """Return the stage itself, or one entry per combination of its matrix. Raise RecipeError."""
    matrix = node.get("matrix")
    if matrix is None:
        return [Entry(name, path, substitute(node, scope, path), scope)]
    axes = _read_axes(substitute(matrix, scope, join_path(path, "matrix")), join_path(path, "matrix"))
    body = node.without("matrix")
    entries: dict[str, Entry] = {}
    for cell in itertools.product(*(list(enumerate(values)) for values in axes.values())):
        chosen = {axis: value for axis, (_, value) in zip(axes, cell, strict=True)}
        word = name + "@" + ",".join(f"{a}={_make_label(v, i)}" for a, (i, v) in zip(axes, cell, strict=True))
        if len(word) > MAX_KEY:
            message = f"the name of a variant is longer than {MAX_KEY} characters"
            raise make_error(matrix.where, join_path(path, "matrix"), message, "use fewer axes, or shorter names")
        if word in entries:
            raise make_error(
                matrix.where, join_path(path, "matrix"), f"two variants have the name `{word}`", "remove one value"
            )
        inner = scope.within("matrix", chosen)
        entries[word] = Entry(word, path, substitute(body, inner, path), inner)
    return list(entries.values())


def list_targets(name: str, entries: list[Entry], prefix: str = "") -> Iterator[tuple[str, Target]]:
    """Yield the names of a stage and their targets: each variant by its own name, all by the stage's name."""
    steps = tuple(prefix + e.word for e in entries)
    if entries[0].word != name:
        yield name, Target(steps, is_fan=True)
    for entry in entries:
        yield entry.word, Target((prefix + entry.word,))


def _read_axes(matrix: Node, path: str) -> dict[str, list[Node]]:
    if not matrix.is_map or not matrix.value:
        raise make_error(
            matrix.where,
            path,
            "`matrix` must be a map of names to lists of values",
            "for example `matrix: {lr: [0.1, 0.01]}`",
        )
    size = 1
    for axis, values in matrix.value.items():
        if not STAGE_NAME.fullmatch(axis):
            raise make_error(
                values.where,
                join_path(path, axis),
                f"`{axis}` cannot name an axis",
                "use lower-case letters, digits and _",
            )
        if not values.is_list or not values.value:
            raise make_error(
                values.where,
                join_path(path, axis),
                f"`{axis}` must be a list of values",
                f"for example `{axis}: [1, 2]`",
            )
        size *= len(values.value)
    if size > MAX_VARIANTS:
        raise make_error(matrix.where, path, f"{size} variants are too many", f"at most {MAX_VARIANTS} are allowed")
    return {axis: values.value for axis, values in matrix.value.items()}


def _make_label(value: Node, index: int) -> str:
    if value.is_map or value.is_list:
        return str(index)
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", write_scalar(value)[:LABEL]) or str(index)
