"""Index of rows: which tables hold a row, by the hashed ids of every table, stored by the table's digest.

A table is read once, even if several artifacts hold the same bytes. Its ids are stored as 16-byte hashes, so a million
rows take 16 MB; rows that curation dropped are stored unhashed, with reason and detail.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from lineage.catalogue.index import Index, transaction
from lineage.digests import digest_file

WIDTH = 16
"""Bytes of a hash, enough to make collisions within a checkout negligible."""
BATCH = 500
"""Tables that are read between two commits; after a kill, the next query continues from the last commit."""


@dataclass(frozen=True)
class Places:
    """Where a row is: keys of the artifacts that hold it, and (key, reason, detail) of those that dropped it."""

    holders: tuple[str, ...]
    dropped: tuple[tuple[str, str, str], ...]


def find_row(index: Index, row: str) -> Places:
    """Return all places of a row id, oldest first, after reading the tables that were not read before."""
    read_new_tables(index)
    row_hash = _hash_id(row)
    candidates = index.rows("select sha256, hashes from row_ids where instr(hashes, ?) > 0", row_hash)
    contents = [(sha256,) for sha256, hashes in candidates if _holds_hash(hashes, row_hash)]
    index.rows("create temporary table if not exists wanted(sha256 text primary key)")
    index.rows("delete from wanted")
    index.connection.executemany("insert into wanted values(?)", contents)
    holders = index.keys("id in (select artifact from tables join wanted using (sha256) where what = 'rows')")
    sql = """select key, reason, detail from dropped_rows d join tables using (sha256)
             join artifacts on artifacts.id = artifact
             where d.id = ? and what = 'dropped' order by started, key, name, d.rowid"""
    return Places(holders, tuple(index.rows(sql, row)))


def read_new_tables(index: Index) -> int:
    """Read the ids of every new table; return their number. A missing file is tried again by later calls."""
    sql = """select min(name), path, sha256, what, size from tables join artifacts on artifacts.id = artifact
             where (sha256, what) not in (select sha256, what from row_ids) group by sha256, what"""
    new = index.rows(sql)
    for start in range(0, len(new), BATCH):
        with transaction(index.connection):
            for name, path, sha256, what, size in new[start : start + BATCH]:
                _read_table(index, Path(index.layout.state, "artifacts", name, path), sha256, what, size)
    return len(new)


def _read_table(index: Index, path: Path, sha256: str, what: str, size: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq  ## only queries about rows need it

    if not path.is_file() or path.stat().st_size != size or digest_file(path, "").sha256 != sha256:
        return  # ids stored under a digest must come from those bytes
    try:
        names = [n for n in ("id", "reason", "detail") if n in pq.read_schema(path).names]
        table = pq.read_table(path, columns=names) if "id" in names else None
    except pa.ArrowException:  # a user's function may declare any file as a table
        table = None
    ids = map(str, table["id"].to_pylist()) if table is not None else ()
    hashes = b"".join(map(_hash_id, ids)) if what == "rows" else b""
    added = index.connection.execute("insert or ignore into row_ids values(?, ?, ?)", (sha256, what, hashes)).rowcount
    if added and what == "dropped" and table is not None:
        lost = [(str(r["id"]), sha256, r.get("reason", ""), r.get("detail", "")) for r in table.to_pylist()]
        index.connection.executemany("insert into dropped_rows values(?,?,?,?)", lost)


def _hash_id(row: str) -> bytes:
    return hashlib.blake2b(row.encode(), digest_size=WIDTH).digest()


def _holds_hash(hashes: bytes, row_hash: bytes) -> bool:
    """Return whether a hash is in a concatenation of hashes, at a multiple of its length."""
    at = hashes.find(row_hash)
    while at >= 0 and at % WIDTH:
        at = hashes.find(row_hash, at + 1)
    return at >= 0
