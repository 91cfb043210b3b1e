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
from typing import Any

from flows.planning.definitions import READER, Facts, read_facts
from lineage.keys import derived_key
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.whole_files import whole_file

PURPOSE = f"definitions {READER} of Python {platform.python_version()}"
MOST = 4096
"""Sources that are remembered; above it, only those that were looked at."""


class FactsCache:
    """Facts by the sha256 of the source."""

    def __init__(self, layout: Layout | None = None):
        self.file = None if layout is None else layout.state / "cache" / "definitions"
        self._key = None if layout is None else _key(layout)
        self._known: dict[str, Any] = self._read() if self._key else {}
        self._used: dict[str, Any] = {}
        self._is_new = False

    def facts(self, source: bytes, name: str) -> Facts:
        """Return the facts of a source text; `name` is that of messages. Raise PlanError for what is no Python."""
        digest = hashlib.sha256(source).hexdigest()
        plain = self._known.get(digest)
        if plain is None:
            facts = read_facts(source, name)
            self._known[digest] = plain = facts.plain()
            self._is_new = True
        self._used[digest] = plain
        return Facts.of_plain(plain)

    def save(self) -> None:
        """Write what was learnt; a cache that cannot be written costs time, nothing else."""
        if not self._is_new or not self._key or self.file is None:
            return
        body = json.dumps(self._known if len(self._known) <= MOST else self._used, separators=(",", ":")).encode()
        with contextlib.suppress(OSError), whole_file(self.file, flush=False) as fresh:
            fresh.write_bytes(_seal(self._key, body) + b"\n" + body)
        self._is_new = False

    def _read(self) -> dict[str, Any]:
        try:
            seal, _, body = self.file.read_bytes().partition(b"\n") if self.file else (b"", b"", b"")
            return json.loads(body) if hmac.compare_digest(seal, _seal(self._key or b"", body)) else {}
        except (OSError, ValueError):
            return {}


def _key(layout: Layout) -> bytes | None:
    try:
        return derived_key(layout, PURPOSE)
    except (PlanError, OSError):
        return None


def _seal(key: bytes, body: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode()
