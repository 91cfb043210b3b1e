"""Resolution of references to steps or to sources outside the recipe."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.data_files import is_data_file
from schemas.errors import RecipeError
from schemas.references import SCHEMES, Reference
from schemas.source.tree import Mark, make_error
from schemas.suggestions import suggest

ENVIRONMENT = re.compile(r"(?<![^:/\s])(\$\w+(\.\w+)?|%\w+%)(?![^/])|\$\{env:\w*\}")
"""A part of a path that is an environment variable as shells, Windows or posttrain's addresses write it."""
ON_THE_HUB = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?:datasets/)?(?P<name>[\w.-]+/[\w.-]+)")
"""The page of a model or data set of the hub."""
ADDRESS = re.compile(r"(?:https?|s3|gs|az|hf|ftp)://?")
"""The beginning of an address; a path may have lost one of its slashes."""
PLACES = (
    "write the path itself (`~` is the home folder, relative paths start at the recipe's folder), or a variable of the "
    "recipe: `vars: {data: ./data}`, `path:${vars.data}/file.jsonl`, and `--set vars.data=...`"
)


@dataclass(frozen=True)
class Target:
    """The target of a name: steps (latest first), all variants of a matrix, another reference, or a missing start."""

    steps: tuple[str, ...] = ()
    is_fan: bool = False
    alias: str | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Resolved:
    """A resolved reference: candidate steps and a named output, or an outside source."""

    steps: tuple[str, ...] = ()
    output: str | None = None
    source: str | None = None


Names = Mapping[str, Target]


def split_reference(text: str, names: Names) -> tuple[str, str | None] | None:
    """Return the longest known name that `text` starts with and the output after it, or None."""
    head, tail = text, ""
    while True:
        if head in names:
            return head, tail or None
        head, dot, last = head.rpartition(".")
        if not dot:
            return None
        tail = f"{last}.{tail}" if tail else last


def resolve_reference(text: str, names: Names, mark: Mark, path: str) -> Resolved:
    """Return the target of a reference. Raise RecipeError with the nearest name."""
    if (variable := ENVIRONMENT.search(text)) is not None:
        message = f"`{variable[0]}` stays as it is: environment variables are not replaced in references"
        raise make_error(mark, path, message, PLACES)
    if "|" in text and ":" not in text.partition("|")[0]:
        return _resolve_choice([part.strip() for part in text.split("|")], names, mark, path)
    if (scheme := Reference(text).scheme) is not None:
        return Resolved(source=_check_outside(text, scheme, mark, path))
    word_and_output = split_reference(text, names)
    if word_and_output is None:
        raise _make_unknown_error(text, names, mark, path)
    word, output = word_and_output
    target = names[word]
    if target.missing:
        raise make_error(mark, path, f"`{word}` has no start in iteration 1", target.missing)
    if target.alias is not None:
        outer = resolve_reference(
            target.alias, {k: v for k, v in names.items() if not k.startswith("previous.")}, mark, path
        )
        return Resolved(outer.steps, outer.output or (None if outer.source else output), outer.source)
    if target.is_fan:
        advice = f"name one of {', '.join(target.steps)}"
        raise make_error(mark, path, f"`{word}` has {len(target.steps)} variants, but this key takes one", advice)
    return Resolved(target.steps, output)


def _resolve_choice(parts: list[str], names: Names, mark: Mark, path: str) -> Resolved:
    """Return the candidates of `repair | tuned`, of which the first that ran is used."""
    resolved = [resolve_reference(part, names, mark, path) for part in parts]
    if any(one.source for one in resolved):
        raise make_error(mark, path, "a choice between stages cannot contain an outside source", "name stages only")
    outputs = {one.output for one in resolved}
    if len(outputs) > 1:
        message = "the candidates name different outputs"
        raise make_error(mark, path, message, "name the same output of each, as `repair.model | tuned.model`")
    return Resolved(tuple(dict.fromkeys(step for one in resolved for step in one.steps)), resolved[0].output)


def _check_outside(text: str, scheme: str, mark: Mark, path: str) -> str:
    rest = text.partition(":")[2]
    if scheme == "file":
        raise make_error(mark, path, "no source `file:`", f"write path:{rest.removeprefix('//') or './file.jsonl'}")
    if (on_hub := ON_THE_HUB.match(text)) is not None:
        raise make_error(mark, path, f"no source `{scheme}:`", f"write hub:{on_hub['name']}")
    if scheme == "path" and (address := ADDRESS.match(rest)) is not None:
        what = f"`{address[0]}` begins an address, and nothing is fetched from one"
        raise make_error(mark, path, what, "download it, and name the file or folder: path:./file")
    if scheme in ("http", "https", "s3", "gs", "az"):
        raise make_error(mark, path, f"no source `{scheme}:`", "download it, and name the file or folder: path:./file")
    if scheme not in SCHEMES:
        raise make_error(mark, path, f"no source `{scheme}:`", suggest(scheme, SCHEMES, "sources"))
    if not rest.strip() or (scheme == "hub" and "/" not in rest) or "\n" in rest:
        shape = {"hub": "hub:org/name@revision", "path": "path:./folder", "mlflow": "mlflow:name@champion"}[scheme]
        raise make_error(mark, path, f"`{text}` is incomplete", f"write {shape}")
    return text


def _make_unknown_error(text: str, names: Names, mark: Mark, path: str) -> RecipeError:
    if text.startswith((".", "/", "~")):
        advice = f"write path:{text} for a folder, or the name of a stage for its output"
    elif is_data_file(text):
        advice = f"write path:{text} for a file"
    elif "/" in text:
        advice = f"write hub:{text} for a model of the hub, or path:{text} for a folder"
    else:
        unrolled = {step for word, target in names.items() for step in target.steps if word != step}
        advice = suggest(text, [n for n in names if n not in unrolled or "@" in n], "stages")
        advice += f"; a file or folder is written path:{text}, a model of the hub hub:org/{text}"
    return make_error(mark, path, f"no stage `{text}`", advice)
