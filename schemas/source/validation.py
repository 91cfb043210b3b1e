"""Problems from pydantic's errors, with a place, the nearest word and what to do."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from schemas.errors import Problem
from schemas.renamed import describe_renaming, find_renamed_key, find_renamed_value
from schemas.source.advice import explain_foreign_key
from schemas.source.limits import MAX_PROBLEMS
from schemas.source.tree import Node, join_path, make_problem, parse_index
from schemas.suggestions import suggest

_UNKNOWN, _MISSING = "extra_forbidden", "missing"
AMOUNTS = {
    "memory": "write a number with its unit, such as 4GiB or 512MB",
    "name": "use letters, digits, `_`, `.` and `-`, without spaces",
    "interval": "write a whole number with its unit, such as 30m, 6h or 1d",
    **dict.fromkeys(
        ("timeout", "core_seconds", "gpu_seconds", "approve_within"), "write a number of seconds, such as 3600"
    ),
}
"""How to write texts of a certain form, by their keys."""
NAMED = {
    "stages": "give every stage a name: `tuned: {kind: sft, ...}`",
    "models": "give every model a name: `{before: path:model, after: tuned}`; for one model write `model:`",
}
"""How to write maps whose keys are names, by their keys."""
SHAPES = {
    "gate": "write a condition: `gate: {metric: accuracy, min: 0.5}`",
    "schedule": "write when, as `{cron: 0 3 * * *}` or `{interval: 6h}`",
    "budget": "write a limit and its amount, as `{core_seconds: 3600}`",
    "promote": "write `{model: STAGE, gate: EVALUATION}`",
}
"""How to write maps that are given as a single value, by their keys."""
_LOOKED_AT = 8 * MAX_PROBLEMS
"""Errors of pydantic that become problems: a value that fits none of several forms has one for each form."""


def convert_errors(
    error: ValidationError, node: Node, path: str, kind: type[BaseModel], more_keys: Iterable[str] = ()
) -> list[Problem]:
    """Return one problem per error in `node`, validated as `kind`; `more_keys` are further keys that it may have.

    Beyond a number of them the others are only counted.
    """
    problems: list[Problem] = []
    unions: dict[str, list[tuple[ErrorDetails, tuple[str, ...]]]] = {}
    roots: dict[str, Node] = {}
    for details in error.errors(include_url=False, include_input=False)[:_LOOKED_AT]:
        at, keys, rest = descend(node, details["loc"])
        if rest and not (details["type"] == _MISSING and len(rest) == 1):
            where = join_path(path, *keys)
            unions.setdefault(where, []).append((details, rest))
            roots[where] = at
        else:
            valid_keys = _list_keys(kind, details["loc"]) + (list(more_keys) if len(details["loc"]) == 1 else [])
            problems.append(_convert_error(details, at, join_path(path, *keys), rest, valid_keys))
    problems = _drop_consequences(problems)
    for where, branches in unions.items():
        problems += _convert_union(branches, roots[where], where)
    if (more := error.error_count() - _LOOKED_AT) > 0:
        problems = [*problems[:MAX_PROBLEMS], make_problem(node.where, path, f"and {more} more errors here")]
    return problems


def _drop_consequences(problems: list[Problem]) -> list[Problem]:
    """Return the problems without the missing keys that stand there under their old names."""
    old = {
        (p.path.rpartition(".")[0], p.message.rpartition(" is now ")[2]) for p in problems if " is now " in p.message
    }
    return [p for p in problems if (p.path, p.message.removesuffix(" is missing")) not in old]


def limit_problems(problems: list[Problem]) -> list[Problem]:
    """Return each problem once; if there are many, the first ones and how many more there are."""
    distinct = list(dict.fromkeys(problems))
    if len(distinct) <= MAX_PROBLEMS + 1:
        return distinct
    last, more = distinct[MAX_PROBLEMS - 1], len(distinct) - MAX_PROBLEMS
    message = f"and at least {more} more errors; correct these first"
    return [*distinct[:MAX_PROBLEMS], Problem(last.file, last.line, last.column, "", message)]


def descend(node: Node, loc: tuple[Any, ...]) -> tuple[Node, list[str], tuple[str, ...]]:
    """Return the deepest node that a location reaches, the keys to it, and what is left of the location."""
    keys: list[str] = []
    for index, part in enumerate(loc):
        child = find_child(node, part)
        if child is None:
            return node, keys, tuple(str(p) for p in loc[index:])
        node = child
        keys.append(str(part))
    return node, keys, ()


def follow_path(node: Node, path: str) -> Node:
    """Return the deepest node on a dotted path; keys may hold dots themselves."""
    parts = path.split(".") if path else []
    while parts:
        for count in range(len(parts), 0, -1):
            child = find_child(node, ".".join(parts[:count]))
            if child is not None:
                node, parts = child, parts[count:]
                break
        else:
            return node
    return node


def find_child(node: Node, part: Any) -> Node | None:
    """Return the child under a key or index, or None."""
    if node.is_list:
        index = parse_index(str(part), len(node.value))
        return None if index is None else node.value[index]
    return node.get(str(part))


def find_coercions(node: Node, value: Any, path: str) -> Iterator[Problem]:
    """Yield words taken for numbers or switches, and switches taken for numbers: YAML 1.2 forbids both."""
    if node.is_map or node.is_list:
        for key, child in node.children():
            below = None
            if isinstance(value, list | tuple) and isinstance(key, int) and key < len(value):
                below = value[key]
            elif isinstance(value, Mapping):
                below = value.get(key, _value_of_number_key(value, key))
            yield from find_coercions(child, below, join_path(path, key))
    elif isinstance(value, bool) and isinstance(node.value, str | int) and not isinstance(node.value, bool):
        yield make_problem(node.mark, path, f"`{node.value}` is not a switch", "write true or false")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(node.value, str) and not node.is_joined:
            plain = node.value.replace("_", "")
            advice = f"write {plain}" if plain != node.value else "write it without quotes"
            yield make_problem(node.mark, path, f"a number is wanted, '{node.value}' is text", advice)
        elif isinstance(node.value, bool):
            yield make_problem(node.mark, path, f"a number is wanted, not {str(node.value).lower()}", "write a number")


def _value_of_number_key(value: Mapping[Any, Any], key: Any) -> Any:
    return value.get(int(key)) if re.fullmatch(r"-?\d{1,18}", str(key)) else None


def _convert_union(branches: list[tuple[ErrorDetails, tuple[str, ...]]], root: Node, path: str) -> list[Problem]:
    """Return the problems of a value that fits none of several forms: of the form that was meant, if that is clear."""
    deep = []
    for details, rest in branches:
        at, more, left = descend(root, rest[1:])
        if (more or (root.is_map and details["type"] == _MISSING and len(branches) == 1)) and details[
            "type"
        ] != _UNKNOWN:
            deep.append(_convert_error(details, at, join_path(path, *more), left, []))
    if deep:
        return deep
    unknown = [(rest, root.get(rest[-1])) for details, rest in branches if details["type"] == _UNKNOWN]
    if unknown and root.is_map:
        words = [rest[-1] for details, rest in branches if details["type"] == _MISSING]
        word = unknown[0][0][-1]
        at = unknown[0][1] or root
        if (new := find_renamed_key(word, words)) is not None:
            return [
                make_problem(
                    at.where, join_path(path, word), describe_renaming(word, new), f"write `{new}` in its place"
                )
            ]
        return [
            make_problem(at.where, join_path(path, word), f"unknown key `{word}`", suggest(word, words, "keys here"))
        ]
    forms = list(dict.fromkeys(_describe_form(details) for details, _ in branches))
    return [make_problem(root.mark, path, f"should be {' or '.join(forms)}{_describe_type(root)}", "")]


def _describe_form(details: ErrorDetails) -> str:
    kind = details["type"].partition("_")[0]
    if details["type"] == "literal_error":
        return str(details.get("ctx", {}).get("expected", "one of the words"))
    if details["type"] in ("missing", "extra_forbidden", "model_type", "model_attributes_type"):
        return "a schedule as {linear: {from: 1.0, to: 0.0, steps: 100}}"
    names = {
        "int": "a whole number",
        "float": "a number",
        "string": "text",
        "bool": "true or false",
        "list": "a list",
        "dict": "a map",
        "none": "null",
        "greater": "larger",
        "less": "smaller",
    }
    return names.get(kind, details["msg"].removeprefix("Input should be "))


def _convert_error(details: ErrorDetails, at: Node, path: str, rest: tuple[str, ...], keys: list[str]) -> Problem:
    kind, message = details["type"], details["msg"]
    if kind == _MISSING:
        return make_problem(
            at.where, path, f"`{rest[0] if rest else '?'}` is missing", f"add `{rest[0] if rest else ''}:` here"
        )
    if kind == _UNKNOWN:
        word = path.rpartition(".")[2]
        if (new := find_renamed_key(word, keys)) is not None:
            return make_problem(at.where, path, describe_renaming(word, new), f"write `{new}:` in its place")
        advice = explain_foreign_key(word, keys) or suggest(word, keys, "keys here")
        return make_problem(at.where, path, f"unknown key `{word}`", advice)
    if kind == "too_short":
        return make_problem(at.mark, path, "this is empty", "at least one entry is wanted")
    if kind == "value_error":
        return _locate(message.removeprefix("Value error, "), at, path)
    if kind == "literal_error":
        expected = str(details.get("ctx", {}).get("expected", ""))
        words = re.findall(r"'([^']*)'", expected) or [expected]
        known = next(
            (word for word in sorted(words, key=len, reverse=True) if str(at.value).startswith(f"{word}_")), None
        )
        if known is not None:
            return make_problem(at.mark, path, f"{_describe_value(at)} is not one of the words", f"write `{known}`")
        if (new := find_renamed_value(at.value, words)) is not None:
            return make_problem(at.mark, path, describe_renaming(str(at.value), new), f"write `{new}` in its place")
        return make_problem(
            at.mark, path, f"{_describe_value(at)} is not one of the words", suggest(str(at.value), words, "words")
        )
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        message = f"a map of keys is wanted{_describe_type(at)}"
        shapes, word = NAMED | SHAPES, path.removesuffix(".0").rpartition(".")[2]
        return make_problem(at.mark, path, message, shapes.get(word, "write `key: value` below it"))
    word = path.rpartition(".")[2]
    if kind == "string_pattern_mismatch" and word in AMOUNTS:
        return make_problem(at.mark, path, f"{_describe_value(at)} is not of the right form", AMOUNTS[word])
    message = message.replace("Input should be", "should be").replace(", unable to parse string as an integer", "")
    message = message.replace(", unable to parse string as a number", "")
    return make_problem(
        at.mark, path, f"{message[0].lower()}{message[1:]}{_describe_type(at)}", _advise(kind, at, word)
    )


def _locate(message: str, at: Node, path: str) -> Problem:
    """Return the problem of a rule about several keys; of a stage, at the key that it begins with or names first."""
    first, _, rest = message.partition(": ")
    words = re.findall(r"^\w+|(?<=`)\w+", message)
    key = next((word for word in words if at.get(word) is not None), None)
    if key is None or at.get("kind") is None:
        return make_problem(at.where, path, message)
    text = rest if first == key and not rest[:1].isdigit() else message
    return make_problem(at.value[key].where, join_path(path, key), text)


def _advise(kind: str, at: Node, word: str) -> str:
    if word == "gate" and not at.is_map:
        return SHAPES[word]
    if kind == "list_type" and at.value is not None:
        return "put it into brackets: [{...}]" if at.is_map else f"write it as a list: [{at.value}]"
    if at.value is None:
        return "write a value after the colon, or remove the key"
    if word in AMOUNTS:
        return AMOUNTS[word]
    if word in SHAPES and not at.is_map:
        return SHAPES[word]
    if kind in ("float_parsing", "int_parsing", "float_type", "int_type"):
        return "write a plain number, such as 1e-4" if "float" in kind else "write a whole number without a unit"
    if kind == "string_type" and not at.is_map and not at.is_list:
        return "quote it if it is meant as text"
    return ""


def _describe_value(at: Node) -> str:
    if at.is_map or at.is_list:
        return "this map" if at.is_map else "this list"
    return f"`{at.value}`"


def _describe_type(at: Node) -> str:
    if at.is_map or at.is_list:
        return ", this is a map" if at.is_map else ", this is a list"
    return f", this is {'null' if at.value is None else repr(at.value)[:80]}"


def _list_keys(kind: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Return keys of the map that holds the end of a location."""
    models: list[type[BaseModel]] = [kind]
    for part in loc[:-1]:
        below = [m.model_fields[str(part)].annotation for m in models if str(part) in m.model_fields]
        models = [m for annotation in below for m in _list_models(annotation)] or models
    return [f.alias or name for m in models for name, f in m.model_fields.items()]


def _list_models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in get_args(annotation) for m in _list_models(inner)]
