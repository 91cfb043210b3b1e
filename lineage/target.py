"""What a word on the command line means: a step, run, key, digest, artifact, row id or outside source."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.layout import Layout
from lineage.records import Record
from schemas.errors import PosttrainError

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


def find_target(layout: Layout, records: list[Record], word: str) -> Target:
    """Resolve a word; the cheap meanings come first. Raises UnknownTarget with what a target may be."""
    for meaning in (_artifact_folder, _run, _step, _source, _prefix, _row):
        if target := meaning(layout, records, word):
            return target
    steps = ", ".join(sorted({record["step"] for record in records})) or "none yet"
    raise UnknownTarget(
        f"lineage: nothing here is called {word!r}\n    give a step ({steps}), a run, the first {SHORTEST_PREFIX} or "
        "more digits of a key or digest, an artifact's folder, the id of a row, or a source such as path:./data"
    )


def _artifact_folder(layout: Layout, records: list[Record], word: str) -> Target | None:
    path = Path(word).resolve()
    folders = {str(Path(record["folder"]).resolve()): record["key"] for record in records} if path.exists() else {}
    key = next((folders[str(p)] for p in (path, *path.parents) if str(p) in folders), None)
    return Target(word, "artifact", (key,)) if key else None


def _run(layout: Layout, records: list[Record], word: str) -> Target | None:
    """A run: what it made and what it found already made, by its plan."""
    plan = layout.run(word) / "plan.json"
    if not re.fullmatch(r"[\w.-]+", word) or not plan.is_file():
        keys = tuple(record["key"] for record in records if record["run"] == word)
        return Target(word, "run", keys) if keys else None
    known = {record["key"] for record in records}
    planned = [step["key"] for step in json.loads(plan.read_text())["steps"]]
    return Target(word, "run", tuple(key for key in planned if key in known))


def _step(layout: Layout, records: list[Record], word: str) -> Target | None:
    """The latest artifact of a step, also as recipe.step."""
    made = [r["key"] for r in records if word in (r["step"], f"{r['recipe']}.{r['step']}")]
    earlier = f", the latest of {len(made)}" if len(made) > 1 else ""
    return Target(word, f"step{earlier}", (made[-1],)) if made else None


def _source(layout: Layout, records: list[Record], word: str) -> Target | None:
    keys = tuple(r["key"] for r in records if any(i.get("source") == word for i in r["inputs"]))
    return Target(word, "outside source", keys) if keys else None


def _prefix(layout: Layout, records: list[Record], word: str) -> Target | None:
    """First digits of a key, of the digest of an output or file, or of what came from outside."""
    if not re.fullmatch(rf"[0-9a-f]{{{SHORTEST_PREFIX},64}}(\.dir)?", word):
        return None
    keys = tuple(r["key"] for r in records if r["key"].startswith(word))
    if keys:
        return Target(word, "key", keys)
    makers = tuple(r["key"] for r in records if any(d.startswith(word) for d in _output_digests(r)))
    if makers:
        return Target(word, "digest", makers)
    readers = tuple(r["key"] for r in records if any(i["digest"].startswith(word) for i in r["inputs"]))
    return Target(word, "digest of an input", readers) if readers else None


def _output_digests(record: Record) -> list[str]:
    outputs = record["outputs"].values()
    return [
        d for o in outputs for d in (o["digest"], o["dvc"], *(h for f in o["files"] for h in (f["sha256"], f["md5"])))
    ]


def _row(layout: Layout, records: list[Record], word: str) -> Target | None:
    """A row of data: the artifacts whose tables hold its id, and those that dropped it."""
    keys, dropped = [], []
    for record in records:
        if any(_rows_with_id(path, word).num_rows for path in _tables(record, "rows.parquet")):
            keys.append(record["key"])
        for path in _tables(record, "dropped.parquet"):
            dropped += [
                (record["key"], r.get("reason", ""), r.get("detail", "")) for r in _rows_with_id(path, word).to_pylist()
            ]
    return Target(word, "row of data", tuple(keys), word, tuple(dropped)) if keys or dropped else None


def holds_row(record: Record, row: str) -> bool:
    """Whether a table among the outputs of an artifact holds the row."""
    return any(_rows_with_id(path, row).num_rows for path in _tables(record, "rows.parquet"))


def _tables(record: Record, file: str) -> list[Path]:
    return [
        Path(record["folder"], "outputs", name, entry["path"])
        for name, output in record["outputs"].items()
        for entry in output["files"]
        if entry["path"].rsplit("/", 1)[-1] == file
    ]


def _rows_with_id(path: Path, row: str) -> pa.Table:
    schema = pq.read_schema(path) if path.is_file() else pa.schema([])
    if "id" not in schema.names:
        return pa.table({})
    columns = [name for name in ("id", "reason", "detail") if name in schema.names]
    return pq.read_table(path, columns=columns, filters=[("id", "=", row)])
