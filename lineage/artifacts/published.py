"""The entries of the audit log about an artifact: whether it was last published by a step or fetched from a remote.

Only lines that were added since the previous call are read.
"""

import json
import re
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from lineage.artifacts.completeness import MANIFEST, Damage
from lineage.artifacts.signature import SIGNATURE, read_signer_name
from lineage.audit.log import Entry, hash_entry, log_file, parse_entry
from lineage.keys import Ed25519PublicKey, is_valid
from lineage.layout import Layout
from schemas.manifest import Manifest

PUBLISHED, PULLED = b'{"action":"artifact published"', b'{"action":"pull"'
Keys = dict[str, Ed25519PublicKey]
KEY = re.compile(rb'"key":"([0-9a-f]{64})"')


@dataclass
class Lines:
    """Positions of the lines about each key in the part of a log that was read."""

    inode: int = 0
    end: int = 0
    places: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


_lines_by_file: dict[Path, Lines] = {}
_lock = threading.Lock()


def compare_with_log(layout: Layout, manifest: Manifest, folder: Path, keys: Keys) -> list[Damage]:
    """Return how an artifact differs from its entry in the audit log; empty if it has none.

    An artifact that was fetched from a remote after its publication here is not compared.
    """
    entry = find_arrival(layout, manifest.key, keys)
    if entry is None or entry["action"] != "artifact published":
        return []
    facts, number = entry["facts"], entry["number"]
    if facts.get("digests") != {name: output.digest for name, output in manifest.outputs.items()}:
        return [Damage(MANIFEST, f"its digests are not those that entry {number} of the audit log saw")]
    if facts.get("signed_by") not in (None, read_signer_name(folder)):
        return [Damage(SIGNATURE, f"is not of the key that signed it by entry {number} of the audit log")]
    return []


def find_arrival(layout: Layout, key: str, keys: Keys) -> Entry | None:
    """Return the latest entry, signed by one of `keys`, about the publication or fetching of an artifact."""
    path = log_file(layout)
    with _lock:
        places = list(_read_new_lines(path).places.get(key, ()))
    raw = tuple((name, public.public_bytes_raw()) for name, public in sorted(keys.items())) if places else ()
    candidates = (_parse_signed(_read_line(path, *place), raw) for place in reversed(places))
    return next((entry for entry in candidates if entry is not None), None)


def _read_new_lines(path: Path) -> Lines:
    """Return the places of lines in a log, with those that were added since the last call."""
    try:
        status = path.stat()
    except OSError:
        return Lines()
    lines = _lines_by_file.setdefault(path, Lines())
    if lines.inode != status.st_ino or status.st_size < lines.end:
        lines = _lines_by_file[path] = Lines(status.st_ino)
    if status.st_size > lines.end:
        with path.open("rb") as stream:
            stream.seek(lines.end)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                for key in _keys_in(line):
                    lines.places.setdefault(key, []).append((lines.end, len(line)))
                lines.end += len(line)
    return lines


def _keys_in(line: bytes) -> list[str]:
    """Return the keys of the artifacts that an entry published or fetched."""
    if line.startswith(PUBLISHED):
        return [key.decode() for key in KEY.findall(line)]
    if line.startswith(PULLED):
        try:
            return [str(key) for key in json.loads(line)["facts"]["artifacts"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return []
    return []


def _read_line(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(start)
        return stream.read(length)


@lru_cache(maxsize=4096)
def _parse_signed(line: bytes, keys: tuple[tuple[str, bytes], ...]) -> Entry | None:
    """Return the entry in a line if one of the keys (name and raw public key) signed it."""
    entry = parse_entry(line)
    if entry is None:
        return None
    try:
        public, signature = dict(keys)[entry["signature"]["keyid"]], bytes.fromhex(entry["signature"]["sig"])
    except (KeyError, TypeError, ValueError):
        return None
    key = Ed25519PublicKey.from_public_bytes(public)
    is_signed = hash_entry(entry) == entry["hash"] and is_valid(key, signature, entry["hash"].encode())
    return entry if is_signed else None
