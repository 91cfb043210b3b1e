"""`${...}` inside values: `${vars.x}` and `${matrix.x}` are put in, `${env:NAME}` stays a reference until a step runs.

A value that is nothing but `${vars.x}` takes the variable's type; inside a longer text it is written out. `$${` is a
plain `${`.
"""

import re

from schemas.nearest import suggest
from schemas.source import MAX_NODES
from schemas.tree import Node, join, refuse

_PIECE = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
_ENV = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
MAX_TEXT = 100_000
Scope = dict[str, dict[str, Node]]


def substitute(node: Node, scope: Scope, path: str = "") -> Node:
    """The tree with variables put in; `scope` holds those of `vars`, `matrix` and `repeat`. Raises RecipeError."""
    if node.is_map:
        return node.with_value({k: substitute(v, scope, join(path, k)) for k, v in node.value.items()})
    if node.is_list:
        return node.with_value([substitute(v, scope, join(path, i)) for i, v in enumerate(node.value)])
    if not isinstance(node.value, str) or "${" not in node.value:
        return node
    whole = _PIECE.fullmatch(node.value)
    if whole and whole[1] is not None:
        found = _lookup(whole[1], node, scope, path)
        return node if found is None else Node(found.value, found.mark, node.key)
    return node.with_value(_written(node, scope, path))


def _written(node: Node, scope: Scope, path: str) -> str:
    def put(piece: re.Match[str]) -> str:
        if piece[1] is None:
            return "${"
        found = _lookup(piece[1], node, scope, path)
        if found is None:
            return piece[0]
        if found.is_map or found.is_list:
            raise refuse(node.mark, path, f"${{{piece[1]}}} is no single value", "use it as the whole value")
        return text_of(found)

    text = _PIECE.sub(put, node.value)
    if len(text) > MAX_TEXT:
        raise refuse(node.mark, path, "the text becomes too long", "variables multiply here")
    return text


def text_of(node: Node) -> str:
    """A scalar as YAML writes it."""
    words = {True: "true", False: "false", None: "null"}
    return words[node.value] if isinstance(node.value, bool) or node.value is None else str(node.value)


def _lookup(name: str, node: Node, scope: Scope, path: str) -> Node | None:
    if _ENV.fullmatch(name):
        return None
    space, _, key = name.partition(".")
    if space not in scope or not key:
        known = [f"{space}.{key}" for space, values in scope.items() for key in values]
        advice = suggest(name, [*known, "env:NAME"], "known")
        raise refuse(node.mark, path, f"${{{name}}} means nothing here", advice)
    found: Node | None = Node(scope[space], node.mark)
    for part in key.split("."):
        found = found.get(part) if found else None
    if found is None:
        advice = suggest(key, scope[space], space) if scope[space] else f"this recipe has no `{space}:`"
        raise refuse(node.mark, path, f"no `{key}` in `{space}`", advice)
    return found


def resolve_vars(declared: Node | None) -> dict[str, Node]:
    """The variables with references among themselves put in. Raises RecipeError."""
    if declared is None:
        return {}
    if not declared.is_map:
        raise refuse(declared.mark, "vars", "wants a map of names to values", "as `vars: {size: 100}`")
    done: dict[str, Node] = {}
    for name in declared.value:
        _resolve(name, declared.value, done, [])
    return {name: done[name] for name in declared.value}


def _resolve(name: str, raw: dict[str, Node], done: dict[str, Node], above: list[str]) -> None:
    if name in done:
        return
    if name in above or len(above) > 64:
        circle = " -> ".join([*above, name])
        raise refuse(raw[name].where, join("vars", name), f"goes in a circle: {circle}", "give one of them a value")
    for needed in sorted(_needs(raw[name])):
        if needed in raw:
            _resolve(needed, raw, done, [*above, name])
    done[name] = substitute(raw[name], {"vars": done}, join("vars", name))
    if done[name].larger_than(MAX_NODES):
        raise refuse(raw[name].where, join("vars", name), f"more than {MAX_NODES} values", "variables multiply here")


def _needs(node: Node) -> set[str]:
    if node.is_map or node.is_list:
        return set().union(*(_needs(child) for _, child in node.children()))
    if not isinstance(node.value, str):
        return set()
    names = [m[1] for m in _PIECE.finditer(node.value) if m[1]]
    return {n.partition(".")[2].partition(".")[0] for n in names if n.startswith("vars.")}
