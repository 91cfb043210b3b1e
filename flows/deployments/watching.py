"""What one recipe waits for: notices changes, has each told exactly once, and remembers across kills.

A change is told under a key that follows from what was remembered before it. Killed between telling and remembering,
the next look finds the same change, tells it under the same key, and whoever hears it knows that it was heard.
"""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lineage.digests import digest_of
from schemas.atomic_write import write_text_atomically

Look = Callable[[str], str | None]
"""From a source to what there is to see of it."""


@dataclass(frozen=True)
class Change:
    """Something that became another thing."""

    source: str
    before: str | None
    """Digest that was remembered; None when the thing was not there."""
    after: str

    def __str__(self) -> str:
        return f"{self.source}: {shorten_digest(self.before)} → {shorten_digest(self.after)}"


@dataclass
class Watch:
    """The sources of one recipe and what is remembered of them in `file`."""

    file: Path
    sources: Sequence[str]
    glance: Look
    """Cheap, and may differ although nothing changed; None: only the content tells."""
    content: Look
    """What counts, None while the source is not there; read when the glance is new, and the same twice in a row."""
    seen: dict[str, str | None] = field(default_factory=dict)
    """Glance of the last look."""
    settled: dict[str, str | None] = field(default_factory=dict)
    """Glance at which the content was read, and told where it had changed."""

    def look(self, tell: Callable[[list[Change], str], None]) -> list[Change]:
        """Look once; calls `tell` with what changed since it was last told, and a key that is the same for the same.

        What `tell` raises is passed on, and the change is told at the next look.
        """
        found, glances = self._contents()
        known = self._remembered()
        digests: dict[str, str | None] = {s: d for s, d in known["digests"].items() if s in self.sources}
        changes = [
            Change(source, digests[source], digest)
            for source, digest in found.items()
            if source in digests and digest is not None and digest != digests[source]
        ]
        if changes:
            told = [[change.source, change.after] for change in changes]
            tell(changes, digest_of([known["since"], known["changes"] + 1, told]))
        now = {**found, **digests, **{change.source: change.after for change in changes}}
        if now != known["digests"]:
            self._remember({**known, "digests": now, "changes": known["changes"] + bool(changes)})
        self.settled |= glances
        return changes

    def _contents(self) -> tuple[dict[str, str | None], dict[str, str | None]]:
        """Content of the sources that may have changed and are at rest, and their glances."""
        found, glances = {}, {}
        for source in self.sources:
            now = self.glance(source)
            rests = source in self.seen and self.seen[source] == now
            if now is None or (rests and self.settled.get(source) != now):
                content = self.content(source)
                if self.glance(source) == now:
                    found[source], glances[source] = content, now
            self.seen[source] = now
        return found, glances

    def _remembered(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.file.read_text()))
        except (OSError, ValueError):
            return {"since": secrets.token_hex(8), "changes": 0, "digests": {}}

    def _remember(self, known: dict[str, Any]) -> None:
        write_text_atomically(self.file, json.dumps(known, indent=1))


def shorten_digest(digest: str | None) -> str:
    """A digest as people read it."""
    return "nothing" if digest is None else digest if len(digest) < 32 else digest[:12]
