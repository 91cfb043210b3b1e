"""Resolves a word of the command line: a step, run, key, digest, artifact, row id or outside source."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from lineage.catalogue.index import PREFIX, Index, list_output_digests
from lineage.catalogue.row_index import find_row
from lineage.records import Record
from lineage.sources.resolve import resolve_registered_model
from schemas.errors import PlanError, PosttrainError

SHORTEST_PREFIX = 6


class UnknownTarget(PosttrainError):
    """Nothing in the store answers to the word."""

    exit_code = 3


@dataclass(frozen=True)
class Target:
    """What was meant: `what` in words, the artifacts' keys, and for a row where curation dropped it."""

    word: str
    what: str
    keys: tuple[str, ...]
    row: str | None = None
    dropped: tuple[tuple[str, str, str], ...] = ()
    """For a row: (key, reason, detail) of each artifact that dropped it."""


def find_target(index: Index, word: str) -> Target:
    """Resolve a word, cheap meanings first. Raise UnknownTarget with what a target may be."""
    for meaning in (
        _match_folder,
        _match_run,
        _match_step,
        _match_registered,
        _match_source,
        _match_prefix,
        _match_row,
    ):
        if target := meaning(index, word):
            return target
    step_names = index.rows("select distinct step from artifacts where record is not null order by step")
    steps = ", ".join(step for (step,) in step_names) or "none yet"
    raise UnknownTarget(
        f"lineage: nothing here is called {word!r}\n    give a step ({steps}), a run, the first {SHORTEST_PREFIX} or "
        "more digits of a key or digest, an artifact's folder, the id of a row, a model such as mlflow:NAME@champion, "
        "or a source such as path:./data"
    )


def _match_folder(index: Index, word: str) -> Target | None:
    path, artifacts = Path(word).resolve(), (index.layout.state / "artifacts").resolve()
    if not path.is_relative_to(artifacts) or path == artifacts or not path.exists():
        return None
    keys = index.keys("name = ?", path.relative_to(artifacts).parts[0])
    return Target(word, "artifact", keys) if keys else None


def _match_run(index: Index, word: str) -> Target | None:
    """Return a run: the artifacts that it made and those that it reused, by its plan."""
    plan = index.layout.run(word) / "plan.json"
    if not re.fullmatch(r"[\w.-]+", word) or not plan.is_file():
        keys = index.keys("run = ?", word)
        return Target(word, "run", keys) if keys else None
    planned = [step["key"] for step in json.loads(plan.read_text())["steps"]]
    return Target(word, "run", tuple(key for key in planned if index.keys("key = ?", key)))


def _match_step(index: Index, word: str) -> Target | None:
    """Return the latest artifact of a step, also as recipe.step."""
    made = index.keys("step = ?", word)
    for dot in re.finditer(r"\.", word):
        made += index.keys("step = ? and recipe = ?", word[dot.end() :], word[: dot.start()])
    earlier = f", the latest of {len(made)}" if len(made) > 1 else ""
    return Target(word, f"step{earlier}", (made[-1],)) if made else None


def _match_registered(index: Index, word: str) -> Target | None:
    """Return the artifact behind a version of a registered model: `mlflow:NAME@champion`."""
    if not word.startswith("mlflow:"):
        return None
    try:
        registered = resolve_registered_model(word.removeprefix("mlflow:"), index.layout)
    except PlanError:
        return None
    keys = index.keys("key = ?", registered.key)
    return Target(word, f"version {registered.version} of {registered.name}", keys) if keys else None


def _match_source(index: Index, word: str) -> Target | None:
    keys = index.keys("id in (select artifact from inputs where source = ?)", word)
    return Target(word, "outside source", keys) if keys else None


def _match_prefix(index: Index, word: str) -> Target | None:
    """Return the artifacts of a prefix of a key, of an output's or file's digest, or of an input's digest."""
    if not re.fullmatch(rf"[0-9a-f]{{{SHORTEST_PREFIX},64}}(\.dir)?", word):
        return None
    if keys := index.keys("key >= ? and key < ?", word, word + "~"):
        return Target(word, "key", keys)
    short = word[:PREFIX]
    likely = index.keys("id in (select artifact from digests where start >= ? and start < ?)", short, short + "~")
    makers = tuple(key for key in likely if _has_digest(index.record(key), word))
    if makers:
        return Target(word, "digest", makers)
    readers = index.keys("id in (select artifact from inputs where digest >= ? and digest < ?)", word, word + "~")
    return Target(word, "digest of an input", readers) if readers else None


def _has_digest(record: Record | None, word: str) -> bool:
    return record is not None and any(digest.startswith(word) for digest in list_output_digests(record))


def _match_row(index: Index, word: str) -> Target | None:
    """Return a row of data: the artifacts whose tables contain its id, and those that dropped it."""
    places = find_row(index, word)
    holders = places.holders or places.dropped
    return Target(word, "row of data", places.holders, word, places.dropped) if holders else None
