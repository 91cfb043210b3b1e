"""Facts about source texts, remembered in the state folder: to parse all that a plan reaches takes a second.

Every source is read and hashed each time, and facts are looked up by that digest. The file is sealed with a key made
from the signing key: one that is damaged, was written by hand or by another version of the reader is ignored, and
without a signing key every source is parsed.
"""

import contextlib
import hashlib
import hmac
import json
import platform
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from flows.planning import definitions, name_uses
from flows.planning.definitions import Facts, read_facts
from lineage.keys import derive_key
from lineage.layout import Layout
from schemas.atomic_write import atomic_file
from schemas.base import JsonObject
from schemas.errors import PlanError

SHORT = 16
"""Digits of digests of definitions: they are for messages."""
MAX_SOURCES = 4096
"""Sources that are remembered; above it, only those that were looked at."""


class FactsCache:
    """Facts by the sha256 of the source, and the definitions behind a digest of a module in a key."""

    def __init__(self, layout: Layout | None = None):
        self.file = None if layout is None else layout.state / "cache" / "definitions"
        self._layout = layout
        self._used: JsonObject = {}
        self._is_new = False

    @cached_property
    def _key(self) -> bytes | None:
        try:
            return None if self._layout is None else derive_key(self._layout, _reader())
        except (PlanError, OSError):
            return None

    @cached_property
    def _record(self) -> dict[str, JsonObject]:
        return self._read() if self._key else {"facts": {}, "parts": {}}

    def facts(self, source: bytes, name: str) -> Facts:
        """Return the facts of a source text; `name` is that of messages. Raise PlanError for what is no Python."""
        digest = hashlib.sha256(source).hexdigest()
        plain = self._record["facts"].get(digest)
        if plain is None:
            facts = read_facts(source, name)
            self._record["facts"][digest] = plain = facts.plain()
            self._is_new = True
        self._used[digest] = plain
        return Facts.of_plain(plain)

    def remember(self, digest: str, parts: Mapping[str, str]) -> None:
        """Note the digests of the definitions by name that the digest of a module in a key is over."""
        if digest not in self._record["parts"]:
            self._record["parts"][digest] = {name: part[:SHORT] for name, part in parts.items()}
            self._is_new = True

    def changed(self, before: str, now: str) -> list[str]:
        """Return the definitions in which two digests of a module differ; none where one of them is not known."""
        old, new = self._record["parts"].get(before), self._record["parts"].get(now)
        if old is None or new is None:
            return []
        return [name for name in {**old, **new} if old.get(name) != new.get(name)]

    def save(self) -> None:
        """Write what was learnt; a cache that cannot be written costs time, nothing else."""
        if not self._is_new or not self._key or self.file is None:
            return
        facts = self._record["facts"] if len(self._record["facts"]) <= MAX_SOURCES else self._used
        parts = dict(list(self._record["parts"].items())[-MAX_SOURCES:])
        body = json.dumps({"facts": facts, "parts": parts}, separators=(",", ":")).encode()
        with contextlib.suppress(OSError), atomic_file(self.file, flush=False) as fresh:
            fresh.write_bytes(_seal(self._key, body) + b"\n" + body)
        self._is_new = False

    def _read(self) -> dict[str, JsonObject]:
        try:
            seal, _, body = self.file.read_bytes().partition(b"\n") if self.file else (b"", b"", b"")
            if hmac.compare_digest(seal, _seal(self._key or b"", body)):
                return json.loads(body)
        except (OSError, ValueError):
            pass
        return {"facts": {}, "parts": {}}


def _seal(key: bytes, body: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode()


def _reader() -> str:
    """Return what tells this version of the reader from another: its text, and that of Python."""
    texts = [Path(name).read_bytes() for name in (str(definitions.__file__), str(name_uses.__file__), __file__)]
    return f"definitions {platform.python_version()} {hashlib.sha256(b''.join(texts)).hexdigest()}"
