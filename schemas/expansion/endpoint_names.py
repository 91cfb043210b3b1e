"""Replaces `endpoint: teacher` in a stage by the endpoint of that name under `endpoints:`.

Secrets that are written out, in endpoints, addresses and headers, are refused, because plans would show them.
"""

import re
from dataclasses import replace

from schemas.source.limits import Allowance
from schemas.source.tree import Node, join_path, make_error
from schemas.suggestions import suggest

KEY, HEADERS, ADDRESS = "endpoint", "headers", "url"
SECRET = re.compile(r"authorization|cookie|token|secret|password|key", re.IGNORECASE)
"""Names of headers whose values are secrets."""
REWARD = re.compile(r"(^|\.)rewards\.\d+$")
"""Path of an entry of `rewards`, which may be an address alone."""
_REFERENCE = re.compile(r"\$\{env:[A-Za-z_][A-Za-z0-9_]*\}")


def read_endpoints(block: Node | None) -> dict[str, Node]:
    """Return the endpoints of a recipe by name. Raise RecipeError for an API key that is written out."""
    if block is None or not block.is_map:
        return {}
    return {word: _name_endpoint(word, node, join_path("endpoints", word)) for word, node in block.value.items()}


def replace_endpoints(node: Node, declared: dict[str, Node], path: str, allowance: Allowance) -> Node:
    """Return a stage with every `endpoint: name` replaced. Raise RecipeError for an unknown name."""

    def below(key: str | int, child: Node) -> Node:
        return _replace_child(key, child, declared, join_path(path, key), allowance)

    if node.is_list:
        return node.with_value([below(index, child) for index, child in enumerate(node.value)])
    return node.with_value({key: below(key, child) for key, child in node.value.items()}) if node.is_map else node


def _replace_child(key: str | int, child: Node, declared: dict[str, Node], path: str, allowance: Allowance) -> Node:
    if key == HEADERS and child.is_map:
        _check_headers(child, path)
    if isinstance(child.value, str) and (key == ADDRESS or (isinstance(key, int) and REWARD.search(path))):
        _check_address(child, path)
    if key != KEY or not (isinstance(child.value, str) or child.is_map):
        return replace_endpoints(child, declared, path, allowance)
    if child.is_map:
        return _check_endpoint(child, path)
    if child.value not in declared:
        advice = (
            suggest(child.value, declared, "endpoints") if declared else "declare it: `endpoints: {teacher: {...}}`"
        )
        raise make_error(child.mark, path, f"no endpoint `{child.value}`", advice)
    allowance.take_tree(declared[child.value], child.mark, path)
    return replace(declared[child.value], key=child.key)


def _check_headers(node: Node, path: str) -> None:
    """Raise RecipeError for a secret header whose value is written out."""
    for word, child in node.value.items():
        if SECRET.search(word) and not _REFERENCE.search(str(child.plain())):
            message = "a secret in the recipe would be stored with every plan"
            advice = f"write `{word}: ${{env:NAME}}` and set that environment variable"
            raise make_error(child.mark, join_path(path, word), message, advice)


def _check_address(node: Node, path: str) -> None:
    """Raise RecipeError for an address with a password."""
    if "@" in node.value.partition("://")[2].partition("/")[0]:
        message = "plans would show the password in this address"
        raise make_error(node.mark, path, message, "write `${env:NAME}` and set that environment variable")


def _name_endpoint(word: str, node: Node, path: str) -> Node:
    if not node.is_map:
        return node
    checked = _check_endpoint(node, path)
    name = checked.get("name") or Node(word, node.where)
    return checked.with_value({**checked.value, "name": name})


def _check_endpoint(node: Node, path: str) -> Node:
    key = node.get("api_key")
    if key is not None and key.value is not None and not _REFERENCE.fullmatch(str(key.plain())):
        message = "an API key in the recipe would be stored with every plan"
        raise make_error(
            key.mark, join_path(path, "api_key"), message, "write `${env:NAME}` and set that environment variable"
        )
    for word in ("name", "model", "version"):
        child = node.get(word)
        if child is not None and _REFERENCE.search(str(child.plain())):
            message = (
                f"the {word} must not depend on an environment variable, because results would change without notice"
            )
            raise make_error(
                child.mark, join_path(path, word), message, "write the value, or use `${vars.x}` and `--set vars.x=...`"
            )
    return node
