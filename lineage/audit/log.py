"""The audit log: who did what and when, one JSON line per entry in `.posttrain/audit.jsonl`, chained by hashes.

An entry is {action, at, facts, number, previous, who, hash, signature}; `hash` is the sha256 of the first six
as canonical JSON, `previous` the hash of the previous entry, and `signature` signs the hash. The file is append-only.
docs/audit.md explains what this proves and what it does not prove.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import pwd
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, cast

from lineage.keys import Signer, load_signer
from lineage.layout import Layout
from lineage.state_files import Unreadable, parse_json, read_regular
from schemas.atomic_write import write_text_atomically
from schemas.base import JsonObject


class Anchor(TypedDict):
    """Number and hash of an entry, kept in other records so that a log truncated before it is detected."""

    number: int
    hash: str


class EntrySignature(TypedDict):
    """The signature of an entry's hash, and the name of its key."""

    keyid: str
    sig: str


class Entry(TypedDict):
    """One line of the log."""

    action: str
    at: str
    facts: JsonObject
    number: int
    previous: str
    who: str
    hash: str
    signature: EntrySignature


FIRST = "0" * 64
"""Value of `previous` in the first entry."""
BLOCK = 1 << 16
UNHASHED = frozenset({"hash", "signature"})
FIELDS = {"action": str, "at": str, "facts": dict, "number": int, "previous": str, "who": str, "hash": str}
"""Fields of an entry except its signature, each of exactly that type."""


def append(layout: Layout, action: str, **facts: Any) -> Entry:
    """Add an entry, flush it to the disk and return it. Facts are JSON values, without host names and secrets.

    Several processes may append at once. The rest of a truncated write is kept, and an entry `repaired` records it.
    Raise PlanError if there is no usable signing key.
    """
    key = load_signer(layout)
    layout.make_state()
    path = log_file(layout)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        last, rest = _read_tail(handle)
        text = b"" if _ends_with_a_line(handle) else b"\n"
        if rest:
            what = {"bytes": len(rest), "sha256": hashlib.sha256(rest).hexdigest(), "cut_off": is_cut_off(rest)}
            last = _make_entry(key, last, "repaired", what)
            text += _encode_line(last)
        entry = _make_entry(key, last, action, facts)
        _write_line(handle, text + _encode_line(entry))
        os.fsync(handle)
        _write_head(layout, entry)
    finally:
        os.close(handle)
    return entry


def head_file(layout: Layout) -> Path:
    """Return the file of the latest entry's anchor, by which a truncated log is detected."""
    return layout.state / "audit.head.json"


def _write_head(layout: Layout, entry: Entry) -> None:
    """Write the anchor of an entry, unless the file has the anchor of an entry that the log lacks."""
    head = read_head(layout)
    if (
        head is None
        or head["hash"] == entry["previous"]
        or any(e["hash"] == head["hash"] for e in read_entries(layout))
    ):
        write_text_atomically(head_file(layout), _encode_line(anchor_of(entry)).decode())


def read_head(layout: Layout) -> Anchor | None:
    """Return the recorded anchor of the latest entry, or None if there is no valid one."""
    try:
        head = parse_json(read_regular(head_file(layout)))
    except (Unreadable, ValueError):
        return None
    is_valid = isinstance(head, dict) and type(head.get("number")) is int and isinstance(head.get("hash"), str)
    return cast(Anchor, head) if is_valid else None


def log_file(layout: Layout) -> Path:
    """Return the file of the log."""
    return layout.state / "audit.jsonl"


def anchor_of(entry: Entry) -> Anchor:
    """Return number and hash of an entry, which other records keep so that a truncated log is detected."""
    return {"number": entry["number"], "hash": entry["hash"]}


def read_latest_anchor(layout: Layout) -> Anchor | None:
    """Return the anchor of the latest entry, or None."""
    try:
        handle = os.open(log_file(layout), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        last, _ = _read_tail(handle)
    finally:
        os.close(handle)
    return anchor_of(last) if last else None


def read_entries(layout: Layout) -> Iterator[Entry]:
    """Yield all valid entries in order."""
    path = log_file(layout)
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        if entry := parse_entry(line):
            yield entry


def parse_entry(line: bytes) -> Entry | None:
    """Return the entry in a line, or None if it is invalid."""
    try:
        entry = parse_json(line)
    except ValueError:
        return None
    is_valid = isinstance(entry, dict) and all(type(entry.get(name)) is kind for name, kind in FIELDS.items())
    return cast(Entry, entry) if is_valid else None


def hash_entry(entry: Mapping[str, object]) -> str:
    """Return the expected hash of an entry; empty if the entry cannot be encoded as JSON, so was not written here."""
    try:
        return hashlib.sha256(_encode_canonical({k: v for k, v in entry.items() if k not in UNHASHED})).hexdigest()
    except (ValueError, RecursionError):
        return ""


def is_cut_off(rest: bytes) -> bool:
    """Return whether the bytes after the last entry are beginnings of entries, which interrupted writes leave."""
    start = b'{"action":"'
    return all(line[: len(start)] == start[: len(line)] and parse_entry(line) is None for line in rest.split(b"\n"))


def _make_entry(key: Signer, last: Entry | None, action: str, facts: JsonObject) -> Entry:
    entry = {
        "action": action,
        "at": datetime.now(UTC).isoformat(),
        "facts": _as_json(facts) | ({"claimed": claimed} if (claimed := _read_claimed_name()) else {}),
        "number": last["number"] + 1 if last else 1,
        "previous": last["hash"] if last else FIRST,
        "who": read_account(),
    }
    digest = hash_entry(entry)
    signature = EntrySignature(keyid=key.name, sig=key.sign(digest.encode()).hex())
    return cast(Entry, {**entry, "hash": digest, "signature": signature})


def name_person(name: str | None = None) -> str:
    """Return who acts as records show it: the account, or another name as one that the account claims.

    The other name is `name`, else POSTTRAIN_USER: anyone can set them.
    """
    account, claimed = read_account(), name or _read_claimed_name()
    return f"{claimed} (claimed by {account})" if claimed and claimed != account else account


def describe_author(entry: Entry) -> str:
    """Return who wrote an entry: the account, and the name that it claims."""
    claimed = entry["facts"].get("claimed") if isinstance(entry["facts"], dict) else None
    return f"{claimed} (claimed by {entry['who']})" if claimed else str(entry["who"])


def _read_claimed_name() -> str | None:
    """Return POSTTRAIN_USER if it names another person than the account."""
    named = os.environ.get("POSTTRAIN_USER")
    return named if named and named != read_account() else None


def read_account() -> str:
    """Return the account of this process in the operating system."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        return f"uid {os.getuid()}"


def _as_json(value: Any) -> Any:
    """Return a value as JSON, with other objects and non-finite numbers as text."""
    if isinstance(value, dict):
        return {str(k): _as_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(v) for v in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _encode_canonical(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def encode_entry(entry: Mapping[str, object]) -> str:
    """Return an entry as its line in the log, without a line break."""
    return _encode_canonical(entry).decode()


def _encode_line(entry: Mapping[str, object]) -> bytes:
    return _encode_canonical(entry) + b"\n"


def _write_line(handle: int, text: bytes) -> None:
    """Write in one call; a full disk truncates the write, which the next entry records."""
    written = os.write(handle, text)
    if written != len(text):
        raise OSError(errno.ENOSPC, "the disk is full: an entry of the audit log was cut off", "audit.jsonl")


def _ends_with_a_line(handle: int) -> bool:
    end = os.fstat(handle).st_size
    return end == 0 or os.pread(handle, 1, end - 1) == b"\n"


def _read_tail(handle: int) -> tuple[Entry | None, bytes]:
    """Return the last entry, and the bytes after it."""
    end = os.fstat(handle).st_size
    start, text = end, b""
    while start > 0:
        begin = max(0, start - BLOCK)
        text = os.pread(handle, start - begin, begin) + text
        start = begin
        lines = text.split(b"\n")
        for at in range(len(lines) - 1, -1 if start == 0 else 0, -1):  # the first piece may be an incomplete line
            if entry := parse_entry(lines[at]):
                return entry, b"\n".join(lines[at + 1 :])
    return None, text
