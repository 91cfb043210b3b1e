"""Verification of the audit log from its content alone: an unbroken hash chain with signed moves and a signed end.

The signature of the last entry covers everything before it, as its hash depends on the whole chain. The slower
`lineage.verification.audit_check` also compares other records that refer to the log.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lineage.audit.log import FIRST, Entry, hash_entry, head_file, log_file, parse_entry
from lineage.keys import Ed25519PublicKey, is_valid, load_trusted_keys
from lineage.layout import Layout
from lineage.state_files import Unreadable, read_regular
from schemas.errors import PlanError

MOVES = frozenset({"promote", "rollback", "restore"})
"""Actions of entries that move a champion."""
KEPT = MOVES | {"move of another log", "approve", "reject", "run started", "deployed"}
"""Actions whose entries other modules use; entries of other actions are only hashed."""
SIGNED = KEPT - {"run started"}
"""Actions whose signatures are checked one by one, to ignore the entries of keys that are no longer trusted."""


@dataclass(frozen=True)
class Chain:
    """The verified content of the log."""

    entries: tuple[Entry, ...]
    """Entries of the actions in `KEPT` before the first break, oldest first."""
    name: str | None
    """Hash of the first entry, which identifies the log; None for an empty log."""
    hashes: frozenset[str]
    """Hashes of all entries before the first break."""
    problem: str | None
    """Where and how the chain is broken; None for an unbroken chain."""


def read_chain(layout: Layout) -> Chain:
    """Return the log's chain, read again only if the file, its head or the trusted keys changed.

    Raise PlanError if the file of a key holds no key.
    """
    keys = load_trusted_keys(layout)
    log, head = log_file(layout), head_file(layout)
    raw = tuple(sorted((name, key.public_bytes_raw()) for name, key in keys.items()))
    return _read_verified(log, head, (_stat_file(log), _stat_file(head)), raw)


def read_unbroken_chain(layout: Layout) -> Chain:
    """Return the chain of a log without a break. Raise PlanError that says where the break is and what to do."""
    chain = read_chain(layout)
    if chain.problem:
        raise PlanError(
            f"the audit log does not hold: {chain.problem}; what it promoted cannot be known. See: posttrain lineage "
            "--verify; then put the log back from a copy"
        )
    return chain


def find_signature_problem(entry: Entry, keys: dict[str, Ed25519PublicKey]) -> str | None:
    """Return why an entry is not signed by a trusted key, or None."""
    if hash_entry(entry) != entry["hash"]:
        return "was altered"
    try:
        key, signature = str(entry["signature"]["keyid"]), bytes.fromhex(entry["signature"]["sig"])
    except (KeyError, TypeError, ValueError):
        return "is not signed"
    if key not in keys:
        return f"is signed by a key that is not trusted here, {key[:16]}"
    return None if is_valid(keys[key], signature, entry["hash"].encode()) else "has a signature that does not fit"


def _stat_file(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=4)
def _read_verified(
    log: Path, head: Path, states: tuple[tuple[int, ...], ...], raw_keys: tuple[tuple[str, bytes], ...]
) -> Chain:
    keys = {name: Ed25519PublicKey.from_public_bytes(raw) for name, raw in raw_keys}
    entries: list[Entry] = []
    hashes: list[str] = []
    last: Entry | None = None
    problem: str | None = None
    head_anchor = _read_head_anchor(head)  # read before the log, as other processes may append entries in between
    for number, line in enumerate(log.read_bytes().split(b"\n") if log.is_file() else (), 1):
        entry = parse_entry(line)
        if entry is None:  # a truncated write or foreign bytes: the chain shows whether an entry is missing
            continue
        if problem := _find_break(entry, last, keys):
            problem = f"{log}:{number}: entry {entry['number']} ({entry['action']}) {problem}"
            break
        last = entry
        hashes.append(entry["hash"])
        if entry["action"] in KEPT:
            entries.append(entry)
    if last is not None and problem is None and (reason := find_signature_problem(last, keys)):
        problem = f"{log}: the last entry, {last['number']} ({last['action']}), {reason}"
    problem = problem or _compare_with_head(log, head, head_anchor, hashes)
    return Chain(tuple(entries), hashes[0] if hashes else None, frozenset(hashes), problem)


def _find_break(entry: Entry, last: Entry | None, keys: dict[str, Ed25519PublicKey]) -> str | None:
    if entry["number"] != (last["number"] + 1 if last else 1):
        return f"does not follow entry {last['number']}" if last else "is not the first"
    if entry["previous"] != (last["hash"] if last else FIRST):
        return "was written after another entry than the one before it"
    if entry["action"] in SIGNED:
        return find_signature_problem(entry, keys)
    return "was altered" if hash_entry(entry) != entry["hash"] else None


def _read_head_anchor(head: Path) -> tuple[int, str] | None:
    """Return the number and hash of the latest entry by the log's head file."""
    try:
        recorded = json.loads(read_regular(head))
        return int(recorded["number"]), str(recorded["hash"])
    except (Unreadable, ValueError, KeyError, TypeError, RecursionError):
        return None


def _compare_with_head(log: Path, head: Path, recorded: tuple[int, str] | None, hashes: list[str]) -> str | None:
    """Return a message about the entry of the head file that the log lacks, or None."""
    number, digest = recorded or (0, "")
    if number > len(hashes):
        return f"{log}: ends at entry {len(hashes)}, but {head} saw entry {number}"
    if number > 0 and hashes[number - 1] != digest:
        return f"{log}: entry {number} is another than the one that {head} saw"
    return None
