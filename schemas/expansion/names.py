"""Resolution of references: from a word and its place to the steps that it may name."""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.errors import RecipeError
from schemas.references import SCHEMES
from schemas.source.tree import Mark, make_error
from schemas.suggestions import suggest


@dataclass(frozen=True)
class Target:
    """What one word stands for: steps (latest first), all variants of a matrix, another reference, or nothing yet."""

    steps: tuple[str, ...] = ()
    is_fan: bool = False
    alias: str | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Resolved:
    """A reference that was understood: candidate steps and named output, or an outside source."""

    steps: tuple[str, ...] = ()
    output: str | None = None
    source: str | None = None


Names = Mapping[str, Target]


def split_reference(text: str, names: Names) -> tuple[str, str | None] | None:
    """Return the longest known word that `text` starts with, and the output after it; None when there is none."""
    head, tail = text, ""
    while True:
        if head in names:
            return head, tail or None
        head, dot, last = head.rpartition(".")
        if not dot:
            return None
        tail = f"{last}.{tail}" if tail else last


def scheme_of(text: str) -> str | None:
    """Return the scheme of an outside reference."""
    head, colon, _ = text.partition(":")
    return head if colon else None


def resolve_reference(text: str, names: Names, mark: Mark, path: str) -> Resolved:
    """Resolve a reference. Raise RecipeError with the nearest word."""
    if "|" in text and ":" not in text.partition("|")[0]:
        return _resolve_choice([part.strip() for part in text.split("|")], names, mark, path)
    if (scheme := scheme_of(text)) is not None:
        return Resolved(source=_check_outside(text, scheme, mark, path))
    word_and_output = split_reference(text, names)
    if word_and_output is None:
        raise _make_unknown_error(text, names, mark, path)
    word, output = word_and_output
    target = names[word]
    if target.missing:
        raise make_error(mark, path, f"`{word}` has nothing before it in iteration 1", target.missing)
    if target.alias is not None:
        outer = resolve_reference(
            target.alias, {k: v for k, v in names.items() if not k.startswith("previous.")}, mark, path
        )
        return Resolved(outer.steps, outer.output or (None if outer.source else output), outer.source)
    if target.is_fan:
        advice = f"name one: {', '.join(target.steps)}"
        raise make_error(mark, path, f"`{word}` has {len(target.steps)} variants and one is wanted here", advice)
    return Resolved(target.steps, output)


def _resolve_choice(parts: list[str], names: Names, mark: Mark, path: str) -> Resolved:
    """Resolve `repair | tuned`: the first that ran."""
    resolved = [resolve_reference(part, names, mark, path) for part in parts]
    if any(one.source for one in resolved):
        raise make_error(mark, path, "a choice between stages cannot hold a source from outside", "name stages only")
    outputs = {one.output for one in resolved}
    if len(outputs) > 1:
        message = "the candidates name different outputs"
        raise make_error(mark, path, message, "name the same output of each, as `repair.model | tuned.model`")
    return Resolved(tuple(dict.fromkeys(step for one in resolved for step in one.steps)), resolved[0].output)


def _check_outside(text: str, scheme: str, mark: Mark, path: str) -> str:
    rest = text.partition(":")[2]
    if scheme not in SCHEMES:
        raise make_error(mark, path, f"`{scheme}:` is no source", suggest(scheme, SCHEMES, "sources"))
    if not rest.strip() or (scheme == "hub" and "/" not in rest) or "\n" in rest:
        shape = {"hub": "hub:org/name@revision", "path": "path:./folder", "mlflow": "mlflow:name@champion"}[scheme]
        raise make_error(mark, path, f"`{text}` is incomplete", f"write {shape}")
    return text


def _make_unknown_error(text: str, names: Names, mark: Mark, path: str) -> RecipeError:
    if text.startswith((".", "/", "~")):
        advice = f"a folder from outside is written path:{text}; the output of a stage is named by the stage"
    elif "/" in text:
        advice = f"a model of the hub is written hub:{text}, a folder path:{text}"
    else:
        unrolled = {step for word, target in names.items() for step in target.steps if word != step}
        advice = suggest(text, [n for n in names if n not in unrolled or "@" in n], "stages")
    return make_error(mark, path, f"no stage `{text}`", advice)
