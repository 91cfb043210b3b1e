"""`${...}` inside values: `${vars.x}` and `${matrix.x}` are substituted, `${env:NAME}` stays until a step runs.

A value that is nothing but `${vars.x}` takes the variable's type; inside a longer text it is written out, and a text of
whole numbers and digits alone is a number where one is wanted. `$${` is a plain `${`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from schemas.errors import Problem
from schemas.source.limits import MAX_DEPTH, MAX_NODES, MAX_TEXT, Allowance, measure_size
from schemas.source.tree import Node, join_path, make_error, make_problem
from schemas.suggestions import suggest

_PIECE = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
_DIGITS = re.compile(r"[0-9]{1,18}")
_ENV = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_SHELL = re.compile(r"(env[:.])?[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True)
class Scope:
    """What can be put in: the values of `vars`, `matrix` and `repeat`, and how much of it the recipe may become."""

    spaces: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)
    allowance: Allowance = field(default_factory=Allowance)

    def within(self, space: str, values: Mapping[str, Node]) -> "Scope":
        """Return the same with the values of one more space."""
        return replace(self, spaces={**self.spaces, space: values})


def substitute(node: Node, scope: Scope, path: str = "", depth: int = 0) -> Node:
    """Return the tree with variables substituted, charged to the allowance of the scope. Raise RecipeError."""
    if depth > MAX_DEPTH:
        raise make_error(node.mark, path, f"nested more than {MAX_DEPTH} levels deep", "variables pile up here")
    if node.is_map:
        scope.allowance.take(1, 0, node.mark, path)
        below = {k: substitute(v, scope, join_path(path, k), depth + 1) for k, v in node.value.items()}
        return node.with_value(below)
    if node.is_list:
        scope.allowance.take(1, 0, node.mark, path)
        return node.with_value([substitute(v, scope, join_path(path, i), depth + 1) for i, v in enumerate(node.value)])
    if not isinstance(node.value, str) or "${" not in node.value:
        scope.allowance.take(1, len(node.value) if isinstance(node.value, str) else 0, node.mark, path)
        return node
    match = _PIECE.fullmatch(node.value)
    if match and match[1] is not None:
        value = _look_up(match[1], node, scope, path)
        scope.allowance.take_tree(node if value is None else value, node.mark, path)
        return node if value is None else Node(value.value, value.mark, node.key)
    text, of_numbers = _write_out(node, scope, path)
    scope.allowance.take(1, len(text), node.mark, path)
    return replace(node, value=text, is_joined=of_numbers and _DIGITS.fullmatch(text) is not None)


def _write_out(node: Node, scope: Scope, path: str) -> tuple[str, bool]:
    """Return a text with its variables written out, and whether all of them are whole numbers."""
    length, of_numbers = 0, True

    def put(piece: re.Match[str]) -> str:
        nonlocal length, of_numbers
        value = None if piece[1] is None else _look_up(piece[1], node, scope, path)
        of_numbers = of_numbers and value is not None and type(value.value) is int
        text = "${" if piece[1] is None else _write_piece(piece, value, node, path)
        length += len(text)
        if length > MAX_TEXT:
            message = f"the text becomes longer than {MAX_TEXT} characters"
            raise make_error(node.mark, path, message, "variables multiply here")
        return text

    return _PIECE.sub(put, node.value), of_numbers


def _write_piece(piece: re.Match[str], value: Node | None, node: Node, path: str) -> str:
    if value is None:
        return piece[0]
    if value.is_map or value.is_list:
        raise make_error(node.mark, path, f"${{{piece[1]}}} is no single value", "use it as the whole value")
    return write_scalar(value)


def write_scalar(node: Node) -> str:
    """Return a scalar as YAML writes it."""
    words = {True: "true", False: "false", None: "null"}
    return words[node.value] if isinstance(node.value, bool) or node.value is None else str(node.value)


def _look_up(name: str, node: Node, scope: Scope, path: str) -> Node | None:
    if _ENV.fullmatch(name):
        return None
    space, _, key = name.partition(".")
    if space not in scope.spaces or not key:
        names = [f"{space}.{key}" for space, values in scope.spaces.items() for key in values]
        advice = suggest(name, names, "known") if names else "the recipe has no `vars`"
        if _SHELL.fullmatch(name):
            advice = (
                f"environment variables are read as ${{env:{name}}}, in addresses and keys of servers only; {advice}"
            )
        raise make_error(node.mark, path, f"${{{name}}} means nothing here", f"{advice}; $${{ is a plain ${{")
    values = scope.spaces[space]
    value: Node | None = Node(values, node.mark)
    for part in key.split("."):
        value = value.get(part) if value else None
    if value is None:
        advice = suggest(key, values, space) if values else f"this recipe has no `{space}:`"
        raise make_error(node.mark, path, f"no `{key}` in `{space}`", advice)
    return value


def resolve_vars(declared: Node | None, allowance: Allowance) -> dict[str, Node]:
    """Return the variables with references among themselves put in. Raise RecipeError."""
    if declared is None:
        return {}
    if not declared.is_map:
        raise make_error(declared.mark, "vars", "wants a map of names to values", "as `vars: {size: 100}`")
    done: dict[str, Node] = {}
    for name in declared.value:
        _resolve_variable(name, declared.value, Scope({"vars": done}, allowance), done, [])
    return {name: done[name] for name in declared.value}


def _resolve_variable(name: str, raw: dict[str, Node], scope: Scope, done: dict[str, Node], above: list[str]) -> None:
    if name in done:
        return
    if name in above or len(above) >= MAX_DEPTH:
        circle = " -> ".join([*above, name])
        raise make_error(
            raw[name].where, join_path("vars", name), f"goes in a circle: {circle}", "give one of them a value"
        )
    for needed in sorted(_find_needed(raw[name])):
        if needed in raw:
            _resolve_variable(needed, raw, scope, done, [*above, name])
    done[name] = substitute(raw[name], scope, join_path("vars", name))
    if measure_size(done[name], MAX_NODES, MAX_TEXT * MAX_DEPTH).nodes > MAX_NODES:
        raise make_error(
            raw[name].where, join_path("vars", name), f"more than {MAX_NODES} values", "variables multiply here"
        )


def find_unused_variables(root: Node) -> Iterator[Problem]:
    """Yield the variables that nothing in a recipe refers to; those of a base are not its author's."""
    declared = root.get("vars")
    used = _find_needed(root)
    for name, value in declared.value.items() if declared is not None and declared.is_map else ():
        if name not in used and (value.where.file == root.where.file or value.where.file.startswith("--set ")):
            advice = f"write `${{vars.{name}}}` where the value belongs, or remove it"
            yield make_problem(value.where, join_path("vars", name), "nothing in this recipe refers to it", advice)


def _find_needed(node: Node) -> set[str]:
    if node.is_map or node.is_list:
        return set().union(*(_find_needed(child) for _, child in node.children()))
    if not isinstance(node.value, str):
        return set()
    names = [m[1] for m in _PIECE.finditer(node.value) if m[1]]
    return {n.partition(".")[2].partition(".")[0] for n in names if n.startswith("vars.")}
