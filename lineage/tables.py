"""Names of table files: a small table is `rows.parquet`, a large one `rows-00000.parquet` and those that follow."""

import re
from pathlib import Path

SHARD = re.compile(r"-\d{5,}(?=\.parquet$)")


def table_name(path: str) -> str:
    """The name that the table of a file would have if it were one file."""
    return SHARD.sub("", path.rsplit("/", 1)[-1])


def table_files(folder: Path, name: str) -> list[Path]:
    """The files of a table in a folder, in the order of their rows."""
    return sorted(path for path in folder.glob("*.parquet") if table_name(path.name) == name)
