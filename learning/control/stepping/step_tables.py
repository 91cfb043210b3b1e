"""Tables with a row per step, such as a log of one's own: files of Parquet, Arrow or JSON lines."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from learning.control.stepping.recorded_episodes import Episode
from learning.control.stepping.spaces import Spaces
from schemas.errors import StepError

READ = {".parquet": "parquet", ".arrow": "feather", ".jsonl": "json", ".ndjson": "json"}
NEEDED, OPTIONAL = ("episode", "observation", "action", "reward"), ("next_observation", "terminated", "truncated")


def read_tables(folder: Path, world: Any, spaces: Spaces) -> Iterator[Episode]:
    """Yield the episodes in a folder's tables, in the order of their names and rows.

    Columns: `episode`, equal for the consecutive rows of an episode; `observation` and `action`, a number or a list of
    them (a choice is its number as the env has it); `reward`; `terminated` and `truncated`, false where they are left
    out; `next_observation`, by default that of the next row. Raise StepError if the files are no such tables.
    """
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in READ]
    if not files:
        raise StepError(
            f"dataset: neither a data set of Minari (a folder with metadata.json) nor a table ({', '.join(READ)})"
        )
    for file in files:
        for name, rows in groupby(_read_rows(file), key=lambda row: row["episode"]):
            yield _make_episode(f"{file.name}: episode {name}", list(rows), world, spaces)


def _read_rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.dataset as pd

    try:
        table = pd.dataset(str(file), format=READ[file.suffix])
        if missing := [name for name in NEEDED if name not in table.schema.names]:
            raise StepError(f"dataset: {file.name} has no column {', '.join(missing)}; it has {table.schema.names}")
        for batch in table.to_batches(columns=[n for n in (*NEEDED, *OPTIONAL) if n in table.schema.names]):
            yield from batch.to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise StepError(f"dataset: {file.name} cannot be read: {error}") from error


def _make_episode(name: str, rows: list[dict[str, Any]], world: Any, spaces: Spaces) -> Episode:
    for place, row in enumerate(rows):
        if empty := [column for column in NEEDED if row[column] is None]:
            raise StepError(f"dataset: {name}, step {place}: `{empty[0]}` is empty")
    given = [row.get("next_observation") for row in rows]
    terminated, truncated = (np.array([bool(row.get(what)) for row in rows]) for what in OPTIONAL[1:])
    if given[-1] is None and not terminated[-1]:
        raise StepError(f"dataset: {name} does not end with `terminated`, so its last row needs a `next_observation`")
    seen = [row["observation"] for row in rows]
    following = [*seen[1:], seen[-1]]  # no value follows a terminated step
    after = [other if one is None else one for one, other in zip(given, following, strict=True)]
    try:
        observation, next_observation = (
            np.stack([spaces.flatten(world, one) for one in each]) for each in (seen, after)
        )
        reward = np.array([row["reward"] for row in rows], dtype=np.float64)
        acted = np.array([row["action"] for row in rows])
        if spaces.is_discrete:
            if not np.issubdtype(acted.dtype, np.integer):
                raise ValueError(f"`action` is {acted.dtype}, and the env's actions are whole numbers")
            action = acted.astype(np.int64) - spaces.start
        else:
            action = acted.astype(np.float32).reshape(len(rows), -1)
    except (TypeError, ValueError, IndexError) as error:
        raise StepError(f"dataset: {name}: its columns do not fit the env: {error}") from error
    return Episode(name, observation, action, reward, next_observation, terminated, truncated)
