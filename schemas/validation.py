"""From pydantic's errors to problems with a place, the nearest word and what to do."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from schemas.advice import canonical
from schemas.errors import Problem
from schemas.limits import MAX_PROBLEMS
from schemas.renamed import now_called, renamed_key, renamed_value
from schemas.suggestions import suggest
from schemas.tree import Node, index_of, join, problem

_UNKNOWN, _MISSING = "extra_forbidden", "missing"
_LOOKED_AT = 8 * MAX_PROBLEMS
"""Errors of pydantic that become problems: a value that fits none of several forms has one for each form."""


def problems_of(
    error: ValidationError, node: Node, path: str, kind: type[BaseModel], beside: Iterable[str] = ()
) -> list[Problem]:
    """One problem per wrong thing in `node`, validated as `kind`; `beside` are further keys that it may have.

    Beyond a number of them the others are only counted.
    """
    found: list[Problem] = []
    unions: dict[str, list[tuple[ErrorDetails, tuple[str, ...]]]] = {}
    roots: dict[str, Node] = {}
    for details in error.errors(include_url=False, include_input=False)[:_LOOKED_AT]:
        at, keys, rest = descend(node, details["loc"])
        if rest and not (details["type"] == _MISSING and len(rest) == 1):
            where = join(path, *keys)
            unions.setdefault(where, []).append((details, rest))
            roots[where] = at
        else:
            known = _known(kind, details["loc"]) + (list(beside) if len(details["loc"]) == 1 else [])
            found.append(_problem(details, at, join(path, *keys), rest, known))
    found = _without_consequences(found)
    for where, branches in unions.items():
        found += _of_union(branches, roots[where], where)
    if (more := error.error_count() - _LOOKED_AT) > 0:
        found = [*found[:MAX_PROBLEMS], problem(node.where, path, f"and {more} more errors here")]
    return found


def _without_consequences(problems: list[Problem]) -> list[Problem]:
    """Return the problems without the missing keys that stand there under their old names."""
    old = {
        (p.path.rpartition(".")[0], p.message.rpartition(" is now ")[2]) for p in problems if " is now " in p.message
    }
    return [p for p in problems if (p.path, p.message.removesuffix(" is missing")) not in old]


def limited(problems: list[Problem]) -> list[Problem]:
    """Each problem once; where they are many, the first ones and how many there are besides."""
    found = list(dict.fromkeys(problems))
    if len(found) <= MAX_PROBLEMS + 1:
        return found
    last, more = found[MAX_PROBLEMS - 1], len(found) - MAX_PROBLEMS
    said = f"and at least {more} more errors; correct these first"
    return [*found[:MAX_PROBLEMS], Problem(last.file, last.line, last.column, "", said)]


def descend(node: Node, loc: tuple[Any, ...]) -> tuple[Node, list[str], tuple[str, ...]]:
    """The deepest node that a location reaches, the keys to it, and what is left of the location."""
    keys: list[str] = []
    for index, part in enumerate(loc):
        child = child_of(node, part)
        if child is None:
            return node, keys, tuple(str(p) for p in loc[index:])
        node = child
        keys.append(str(part))
    return node, keys, ()


def follow(node: Node, path: str) -> Node:
    """The deepest node on a dotted path; keys may hold dots themselves."""
    parts = path.split(".") if path else []
    while parts:
        for count in range(len(parts), 0, -1):
            child = child_of(node, ".".join(parts[:count]))
            if child is not None:
                node, parts = child, parts[count:]
                break
        else:
            return node
    return node


def child_of(node: Node, part: Any) -> Node | None:
    """Child under a key or index."""
    if node.is_list:
        index = index_of(str(part), len(node.value))
        return None if index is None else node.value[index]
    return node.get(str(part))


def coerced(node: Node, value: Any, path: str) -> Iterator[Problem]:
    """Words taken for numbers or switches, and switches taken for numbers: YAML 1.2 would not, so neither do we."""
    if node.is_map or node.is_list:
        for key, child in node.children():
            inside = isinstance(value, list | tuple) and isinstance(key, int) and key < len(value)
            below = (
                value[key]
                if inside
                else value.get(key, _number_key(value, key))
                if isinstance(value, Mapping)
                else None
            )
            yield from coerced(child, below, join(path, key))
    elif isinstance(value, bool) and isinstance(node.value, str | int) and not isinstance(node.value, bool):
        yield problem(node.mark, path, f"`{node.value}` is not a switch", "write true or false")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(node.value, str):
            yield problem(node.mark, path, f"a number is wanted, '{node.value}' is text", "write it without quotes")
        elif isinstance(node.value, bool):
            yield problem(node.mark, path, f"a number is wanted, not {str(node.value).lower()}", "write a number")


def _number_key(value: Mapping[Any, Any], key: Any) -> Any:
    return value.get(int(key)) if re.fullmatch(r"-?\d{1,18}", str(key)) else None


def _of_union(branches: list[tuple[ErrorDetails, tuple[str, ...]]], root: Node, path: str) -> list[Problem]:
    """One problem for a value that fits none of several forms: of the form that was meant, where that can be told."""
    deep = []
    for details, rest in branches:
        at, more, left = descend(root, rest[1:])
        if (more or (root.is_map and details["type"] == _MISSING and len(branches) == 1)) and details[
            "type"
        ] != _UNKNOWN:
            deep.append(_problem(details, at, join(path, *more), left, []))
    if deep:
        return deep
    unknown = [(rest, root.get(rest[-1])) for details, rest in branches if details["type"] == _UNKNOWN]
    if unknown and root.is_map:
        words = [rest[-1] for details, rest in branches if details["type"] == _MISSING]
        word = unknown[0][0][-1]
        at = unknown[0][1] or root
        if (new := renamed_key(word, words)) is not None:
            return [problem(at.where, join(path, word), now_called(word, new), f"write `{new}` in its place")]
        return [problem(at.where, join(path, word), f"unknown key `{word}`", suggest(word, words, "keys here"))]
    forms = list(dict.fromkeys(_form(details) for details, _ in branches))
    return [problem(root.mark, path, f"should be {' or '.join(forms)}{_shown(root)}", "")]


def _form(details: ErrorDetails) -> str:
    kind = details["type"].partition("_")[0]
    if details["type"] == "literal_error":
        return str(details.get("ctx", {}).get("expected", "one of the words"))
    if details["type"] in ("missing", "extra_forbidden", "model_type", "model_attributes_type"):
        return "a schedule as {linear: {from: 1.0, to: 0.0, steps: 100}}"
    names = {"int": "a whole number", "float": "a number", "string": "text", "bool": "true or false", "list": "a list",
             "dict": "a map", "none": "null", "greater": "larger", "less": "smaller"}  # fmt: skip
    return names.get(kind, details["msg"].removeprefix("Input should be "))


def _problem(details: ErrorDetails, at: Node, path: str, rest: tuple[str, ...], known: list[str]) -> Problem:
    kind, said = details["type"], details["msg"]
    if kind == _MISSING:
        return problem(
            at.where, path, f"`{rest[0] if rest else '?'}` is missing", f"add `{rest[0] if rest else ''}:` here"
        )
    if kind == _UNKNOWN:
        word = path.rpartition(".")[2]
        if (new := renamed_key(word, known)) is not None:
            return problem(at.where, path, now_called(word, new), f"write `{new}:` in its place")
        ours = canonical(word, known)
        advice = f"here it is called `{ours}`" if ours else suggest(word, known, "keys here")
        return problem(at.where, path, f"unknown key `{word}`", advice)
    if kind == "too_short":
        return problem(at.mark, path, "this is empty", "at least one entry is wanted")
    if kind == "value_error":
        return problem(at.where, path, said.removeprefix("Value error, "))
    if kind == "literal_error":
        expected = str(details.get("ctx", {}).get("expected", ""))
        words = re.findall(r"'([^']*)'", expected) or [expected]
        if (new := renamed_value(at.value, words)) is not None:
            return problem(at.mark, path, now_called(str(at.value), new), f"write `{new}` in its place")
        return problem(at.mark, path, f"{_value(at)} is not one of the words", suggest(str(at.value), words, "words"))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return problem(at.mark, path, f"a map of keys is wanted{_shown(at)}", "write `key: value` below it")
    said = said.replace("Input should be", "should be").replace(", unable to parse string as an integer", "")
    said = said.replace(", unable to parse string as a number", "")
    return problem(at.mark, path, f"{said[0].lower()}{said[1:]}{_shown(at)}", _hint(kind, at))


def _hint(kind: str, at: Node) -> str:
    if kind == "list_type" and not at.is_map and at.value is not None:
        return f"write it as a list: [{at.value}]"
    if kind == "string_type" and not at.is_map and not at.is_list:
        return "quote it if it is meant as text"
    return ""


def _value(at: Node) -> str:
    if at.is_map or at.is_list:
        return "this map" if at.is_map else "this list"
    return f"`{at.value}`"


def _shown(at: Node) -> str:
    if at.is_map or at.is_list:
        return ", this is a map" if at.is_map else ", this is a list"
    return f", this is {'null' if at.value is None else repr(at.value)[:80]}"


def _known(kind: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Keys of the map that holds the end of a location."""
    models: list[type[BaseModel]] = [kind]
    for part in loc[:-1]:
        below = [m.model_fields[str(part)].annotation for m in models if str(part) in m.model_fields]
        models = [m for annotation in below for m in _models(annotation)] or models
    return [f.alias or name for m in models for name, f in m.model_fields.items()]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in get_args(annotation) for m in _models(inner)]
