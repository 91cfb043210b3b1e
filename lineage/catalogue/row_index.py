"""Index of rows: which tables hold a row, by the hashed ids of every table, kept by its content.

A table is read once, whatever number of artifacts hold the same bytes. Its ids are kept as 16-byte hashes, so that a
million rows take 16 MB; what curation dropped is kept as it stands, with reason and detail.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from lineage.catalogue.index import Index, transaction
from lineage.digests import digest_file

WIDTH = 16
"""Bytes of a hash: two ids of one checkout never share one."""
BATCH = 500
"""Tables that are read between two commits: a killed question begins where it was."""


@dataclass(frozen=True)
class Places:
    """Where a row is: keys of the artifacts that hold it, and (key, reason, detail) of those that dropped it."""

    holders: tuple[str, ...]
    dropped: tuple[tuple[str, str, str], ...]


def find_row(index: Index, row: str) -> Places:
    """Return all places of a row id, oldest first; read the tables that were not read before."""
    read_new_tables(index)
    wanted = _hash_id(row)
    candidates = index.rows("select sha256, hashes from row_ids where instr(hashes, ?) > 0", wanted)
    contents = [(sha256,) for sha256, hashes in candidates if _holds_hash(hashes, wanted)]
    index.rows("create temporary table if not exists wanted(sha256 text primary key)")
    index.rows("delete from wanted")
    index.connection.executemany("insert into wanted values(?)", contents)
    holders = index.keys("id in (select artifact from tables join wanted using (sha256) where what = 'rows')")
    sql = """select key, reason, detail from dropped_rows d join tables using (sha256)
             join artifacts on artifacts.id = artifact
             where d.id = ? and what = 'dropped' order by started, key, name, d.rowid"""
    return Places(holders, tuple(index.rows(sql, row)))


def read_new_tables(index: Index) -> int:
    """Read the ids of every new table; return how many there were. A missing file is tried again later."""
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
    import pyarrow.parquet as pq  # a question about anything but rows does not need it

    if not path.is_file() or path.stat().st_size != size or digest_file(path, "").sha256 != sha256:
        return  # what is kept under a digest must come from those bytes
    try:
        names = [n for n in ("id", "reason", "detail") if n in pq.read_schema(path).names]
        table = pq.read_table(path, columns=names) if "id" in names else None
    except pa.ArrowException:  # a function of one's own may call anything a table
        table = None
    ids = map(str, table["id"].to_pylist()) if table is not None else ()
    hashes = b"".join(map(_hash_id, ids)) if what == "rows" else b""
    added = index.connection.execute("insert or ignore into row_ids values(?, ?, ?)", (sha256, what, hashes)).rowcount
    if added and what == "dropped" and table is not None:
        lost = [(str(r["id"]), sha256, r.get("reason", ""), r.get("detail", "")) for r in table.to_pylist()]
        index.connection.executemany("insert into dropped_rows values(?,?,?,?)", lost)


def _hash_id(row: str) -> bytes:
    return hashlib.blake2b(row.encode(), digest_size=WIDTH).digest()


def _holds_hash(hashes: bytes, wanted: bytes) -> bool:
    """Return whether the hash is at a place where a hash begins."""
    at = hashes.find(wanted)
    while at >= 0 and at % WIDTH:
        at = hashes.find(wanted, at + 1)
    return at >= 0
