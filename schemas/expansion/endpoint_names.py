"""`endpoint: teacher` in a stage: the word stands for what `endpoints:` of the recipe says under it."""

import re
from dataclasses import replace

from schemas.source.limits import Allowance
from schemas.source.tree import Node, join, refuse
from schemas.suggestions import suggest

KEY = "endpoint"
_REFERENCE = re.compile(r"\$\{env:[A-Za-z_][A-Za-z0-9_]*\}")


def declared_endpoints(block: Node | None) -> dict[str, Node]:
    """The endpoints of a recipe, each with its word as name. Raises RecipeError for a key that is written out."""
    if block is None or not block.is_map:
        return {}
    return {word: _named(word, node, join("endpoints", word)) for word, node in block.value.items()}


def with_endpoints(node: Node, declared: dict[str, Node], path: str, allowance: Allowance) -> Node:
    """A stage in which every `endpoint: word` is what the word stands for. Raises RecipeError for an unknown word."""

    def below(key: str | int, child: Node) -> Node:
        return _child(key, child, declared, join(path, key), allowance)

    if node.is_list:
        return node.with_value([below(index, child) for index, child in enumerate(node.value)])
    return node.with_value({key: below(key, child) for key, child in node.value.items()}) if node.is_map else node


def _child(key: str | int, child: Node, declared: dict[str, Node], path: str, allowance: Allowance) -> Node:
    if key != KEY or not (isinstance(child.value, str) or child.is_map):
        return with_endpoints(child, declared, path, allowance)
    if child.is_map:
        return _checked(child, path)
    if child.value not in declared:
        advice = (
            suggest(child.value, declared, "endpoints") if declared else "declare it: `endpoints: {teacher: {...}}`"
        )
        raise refuse(child.mark, path, f"no endpoint `{child.value}`", advice)
    allowance.take_tree(declared[child.value], child.mark, path)
    return replace(declared[child.value], key=child.key)


def _named(word: str, node: Node, path: str) -> Node:
    if not node.is_map:
        return node
    checked = _checked(node, path)
    name = checked.get("name") or Node(word, node.where)
    return checked.with_value({**checked.value, "name": name})


def _checked(node: Node, path: str) -> Node:
    key = node.get("api_key")
    if key is not None and key.value is not None and not _REFERENCE.fullmatch(str(key.plain())):
        said = "a key that is written out would be stored with every plan"
        raise refuse(key.mark, join(path, "api_key"), said, "put it into a variable and write `${env:NAME}`")
    for word in ("name", "model", "version"):
        child = node.get(word)
        if child is not None and _REFERENCE.search(str(child.plain())):
            said = f"another value of the variable would be another {word}, and nobody would notice"
            raise refuse(child.mark, join(path, word), said, "write it out, or use `${vars.x}` and `--set vars.x=...`")
    return node
