"""Rules for every value of a recipe: no huge numbers, long keys or large collections."""

import math
from collections.abc import Iterator

from schemas.errors import Problem, RecipeError, printable
from schemas.source.limits import MAX_DEPTH, MAX_ENTRIES, MAX_KEY, MAX_PROBLEMS
from schemas.source.tree import Node, join_path, make_problem

LARGEST = 2**63
"""Bound of integers: databases, Parquet and JSON readers hold no larger ones."""


def check_values(root: Node) -> None:
    """Raise RecipeError with every invalid value of a tree, which has parents, profile and overrides applied."""
    problems: list[Problem] = []
    for one in _find_problems(root, "", 0):
        problems.append(one)
        if len(problems) == MAX_PROBLEMS:
            break
    if problems:
        raise RecipeError(problems)


def _find_problems(node: Node, path: str, depth: int) -> Iterator[Problem]:
    if node.is_map or node.is_list:
        yield from _check_collection(node, path, depth)
        if depth <= MAX_DEPTH:
            for key, child in node.children():
                yield from _find_problems(child, join_path(path, key), depth + 1)
    elif isinstance(node.value, float) and not math.isfinite(node.value):
        yield make_problem(node.mark, path, f"a finite number is wanted, this is {node.value}", "write a number")
    elif isinstance(node.value, int) and abs(node.value) >= LARGEST:
        message = f"a whole number of {len(str(abs(node.value)))} digits is too large"
        yield make_problem(node.mark, path, message, "at most 9223372036854775807 (64 bits)")


def _check_collection(node: Node, path: str, depth: int) -> Iterator[Problem]:
    noun = "keys" if node.is_map else "entries"
    if len(node.value) > MAX_ENTRIES:
        message = f"{len(node.value)} {noun} in one place are too many"
        yield make_problem(node.where, path, message, f"at most {MAX_ENTRIES}; keep data in files of its own")
    if depth > MAX_DEPTH:
        yield make_problem(node.where, path, f"nested more than {MAX_DEPTH} levels deep", "recipes need about eight")
    for key in node.value if node.is_map else ():
        if len(key) > MAX_KEY:
            message = f"a key of {len(key)} characters is too long: {printable(key, 40)}"
            yield make_problem(node.value[key].where, path, message, f"at most {MAX_KEY}")
