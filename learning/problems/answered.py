"""Problems of rows that have completions already."""

from pathlib import Path

from learning.data.rows import SCHEMAS, Row, read_rows
from schemas.references import ChatRef


def answered(*, data: ChatRef) -> list[Row]:
    """Return the problems of chat rows, each id once: what a rollout `recorded` is asked for."""
    rows = {row["id"]: row for row in read_rows(Path(str(data)), "chat")}
    return [{name: row.get(name) for name in SCHEMAS["prompts"].names} for row in rows.values()]
