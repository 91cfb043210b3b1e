"""`repeat: {max, until, first, stages}`: a loop is unrolled, iteration i of stage s is the step `<loop>-<i>-<s>`.

Inside, `s` refers to the stage of the same iteration and `previous.s` to that of the previous one (in the first
iteration, to the reference in `first`). Outside, `<loop>.s` refers to the last iteration that ran. Once `until` is
true, later iterations are skipped.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.expansion.entries import Entry, check_name, count_variants, expand_matrix, list_targets, refuse_many
from schemas.expansion.names import Target, split_reference
from schemas.source.tree import Mark, Node, join_path, make_error, make_nodes
from schemas.source.variables import Scope, substitute
from schemas.suggestions import suggest

MAX_CONDITION = 500
"""Characters of `until`."""
KEYS = ("max", "until", "first", "stages")
MAX_ITERATIONS = 100
_UNTIL = re.compile(r"\s*(\S+)\s*(>=|<=|==|>|<)\s*([-+]?[0-9.]{1,40}(?:[eE][-+]?[0-9]{1,9})?)\s*")


@dataclass(frozen=True)
class Condition:
    """A comparison of a metric of a stage of the loop with a value."""

    word: str
    metric: str
    op: str
    value: float


@dataclass(frozen=True)
class Loop:
    """A loop as written, and the entries of each iteration."""

    name: str
    path: str
    first: dict[str, str]
    until: Condition | None
    rounds: list[dict[str, list[Entry]]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Number of steps of all iterations."""
        return sum(len(entries) for stages in self.rounds for entries in stages.values())

    def prefix(self, iteration: int) -> str:
        """Return the beginning of the names of an iteration's steps."""
        return f"{self.name}-{iteration}-"

    def inner(self, iteration: int) -> Iterator[tuple[str, Target]]:
        """Yield the names inside an iteration (from 1) and their targets, in addition to those of the recipe."""
        for stage, entries in self.rounds[iteration - 1].items():
            yield from list_targets(stage, entries, self.prefix(iteration))
            for entry in entries:
                yield f"previous.{entry.word}", self._previous(entry.word, stage, iteration)

    def outer(self) -> Iterator[tuple[str, Target]]:
        """Yield the names outside the loop and their targets: `<loop>.<stage>`, and every step by its own name."""
        count = len(self.rounds)
        for stage, entries in self.rounds[0].items():
            if entries[0].word != stage:
                yield f"{self.name}.{stage}", Target(tuple(f"{self.name}.{e.word}" for e in entries), is_fan=True)
            for entry in entries:
                steps = tuple(self.prefix(i) + entry.word for i in range(count, 0, -1))
                yield f"{self.name}.{entry.word}", Target(steps)
                yield from ((step, Target((step,))) for step in steps)

    def _previous(self, word: str, stage: str, iteration: int) -> Target:
        if iteration > 1:
            return Target((self.prefix(iteration - 1) + word,))
        reference = self.first.get(word, self.first.get(stage))
        if reference is None:
            return Target(missing=f"name the start: `first: {{{stage}: <reference>}}` under `repeat`")
        return Target(alias=reference)


def parse_loop(name: str, node: Node, path: str, scope: Scope) -> Loop:
    """Read and unroll a loop. Raise RecipeError."""
    for key, child in node.value.items():
        if key not in ("repeat", "description"):
            advice = "the stages of a loop belong under `repeat.stages`"
            raise make_error(child.where, join_path(path, key), f"a stage with `repeat` has no key `{key}`", advice)
    repeat_path, repeat = join_path(path, "repeat"), node.value["repeat"]
    if not repeat.is_map:
        raise make_error(
            repeat.where, repeat_path, "`repeat` must be a map", "for example `repeat: {max: 3, stages: {...}}`"
        )
    for key, child in repeat.value.items():
        if key not in KEYS:
            raise make_error(
                child.where, join_path(repeat_path, key), f"unknown key `{key}`", suggest(key, KEYS, "keys")
            )
    head = substitute(repeat.without("stages"), scope, repeat_path)
    stages, count = _read_stages(repeat, repeat_path), _read_max(head, repeat.where, repeat_path)
    first_round = scope.within("repeat", _iteration_variables(1, repeat))
    variants_of = (count_variants(s, join_path(repeat_path, "stages", n), first_round) for n, s in stages.value.items())
    refuse_many(count * sum(variants_of), repeat, repeat_path)
    rounds = [dict(_expand_iteration(stages, i, repeat_path, scope)) for i in range(1, count + 1)]
    first = _read_first(head.get("first"), stages, join_path(repeat_path, "first"))
    return Loop(name, path, first, _parse_until(head.get("until"), rounds[0], join_path(repeat_path, "until")), rounds)


def _read_stages(repeat: Node, path: str) -> Node:
    stages = repeat.get("stages")
    if stages is None or not stages.is_map or not stages.value:
        where = repeat.where if stages is None else stages.where
        raise make_error(
            where, join_path(path, "stages"), "`stages` must be a map of stages", "for example `stages: {rl: {...}}`"
        )
    for name, node in stages.value.items():
        check_name(name, node, join_path(path, "stages", name))
        if (nested := node.get("repeat")) is not None:
            raise make_error(
                nested.where,
                join_path(path, "stages", name),
                "a loop cannot contain a loop",
                "write the stages of one of them out",
            )
    return stages


def _expand_iteration(stages: Node, number: int, path: str, scope: Scope) -> Iterator[tuple[str, list[Entry]]]:
    for name, node in stages.value.items():
        inner = scope.within("repeat", _iteration_variables(number, node))
        yield name, expand_matrix(name, node, join_path(path, "stages", name), inner)


def _iteration_variables(number: int, node: Node) -> dict[str, Node]:
    return {"iteration": make_nodes(number, node.where)}


def _read_max(head: Node, where: Mark, path: str) -> int:
    node = head.get("max")
    if node is None:
        raise make_error(where, path, "`max` is missing", "set the largest number of iterations, for example `max: 3`")
    if isinstance(node.value, bool) or not isinstance(node.value, int) or not 1 <= node.value <= MAX_ITERATIONS:
        raise make_error(
            node.mark,
            join_path(path, "max"),
            f"`max` must be a whole number from 1 to {MAX_ITERATIONS}",
            "for example `max: 3`",
        )
    return node.value


def _read_first(node: Node | None, stages: Node, path: str) -> dict[str, str]:
    if node is None:
        return {}
    if not node.is_map:
        raise make_error(
            node.where, path, "`first` must be a map of stages to references", "for example `first: {rl: cold_start}`"
        )
    for name, child in node.value.items():
        if name.partition("@")[0] not in stages.value:
            raise make_error(
                child.where,
                join_path(path, name),
                f"the loop has no stage `{name}`",
                suggest(name, stages.value, "stages of the loop"),
            )
        if not isinstance(child.value, str) or not child.value or child.value.startswith("previous."):
            raise make_error(
                child.mark, join_path(path, name), f"`{name}` must be a reference to an artifact outside the loop", ""
            )
    return {name: child.value for name, child in node.value.items()}


def _parse_until(node: Node | None, stages: dict[str, list[Entry]], path: str) -> Condition | None:
    if node is None:
        return None
    text = node.value if isinstance(node.value, str) and len(node.value) <= MAX_CONDITION else ""
    match = _UNTIL.fullmatch(text)
    try:
        value = float(match[3]) if match else None
    except ValueError:
        value = None
    if match is None or value is None or not math.isfinite(value):
        example = 'for example `until: "eval.accuracy >= 0.9"` (>=, >, <=, < or ==)'
        raise make_error(node.mark, path, "`until` must be stage.metric, a comparison and a number", example)
    words = {e.word: Target((e.word,)) for entries in stages.values() for e in entries}
    split_here = split_reference(match[1], words)
    if split_here is None:
        advice = suggest(match[1].partition(".")[0], words, "stages of the loop")
        raise make_error(node.mark, path, f"the loop has no stage for `{match[1]}`", advice)
    if split_here[1] is None:
        raise make_error(node.mark, path, f"`{match[1]}` has no metric", f"for example `{match[1]}.accuracy`")
    return Condition(split_here[0], split_here[1], match[2], value)
