"""Watch the sources of one recipe: find changes, report each exactly once, and remember them across kills."""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from lineage.digests import digest_of
from schemas.atomic_write import write_text_atomically

Look = Callable[[str], str | None]
"""Returns the observable state of a source."""


@dataclass(frozen=True)
class Change:
    """A source whose content changed."""

    source: str
    before: str | None
    """Digest that was remembered; None when the thing was not there."""
    after: str

    def __str__(self) -> str:
        return f"{self.source}: {shorten_digest(self.before)} → {shorten_digest(self.after)}"


class Memory(TypedDict):
    """What a watch remembers across kills."""

    since: str
    """Distinguishes this memory from one that was lost."""
    changes: int
    """How many changes were reported."""
    digests: dict[str, str | None]
    """Content of every source when it was last reported."""


@dataclass
class Watch:
    """The sources of one recipe, and what `file` remembers of them."""

    file: Path
    sources: Sequence[str]
    glance: Look
    """Cheap, and may differ although nothing changed; None: only the content counts."""
    content: Look
    """What counts, None while the source is not there; read when the glance is new, and the same twice in a row."""
    last_glances: dict[str, str | None] = field(default_factory=dict)
    """Glance of the last look."""
    settled: dict[str, str | None] = field(default_factory=dict)
    """Glance at which the content was read, and reported if it had changed."""

    def look(self, report: Callable[[list[Change], str], None]) -> list[Change]:
        """Check once; call `report` with what changed since the last report, and a key that identifies the change.

        An error of `report` is passed on, and the change is reported at the next check.
        """
        contents, glances = self._contents()
        memory = self._read_memory()
        digests: dict[str, str | None] = {s: d for s, d in memory["digests"].items() if s in self.sources}
        changes = [
            Change(source, digests[source], digest)
            for source, digest in contents.items()
            if source in digests and digest is not None and digest != digests[source]
        ]
        if changes:
            identity = [[change.source, change.after] for change in changes]
            report(changes, digest_of([memory["since"], memory["changes"] + 1, identity]))
        now = {**contents, **digests, **{change.source: change.after for change in changes}}
        if now != memory["digests"]:
            memory = Memory(since=memory["since"], digests=now, changes=memory["changes"] + bool(changes))
            write_text_atomically(self.file, json.dumps(memory, indent=1))
        self.settled |= glances
        return changes

    def _contents(self) -> tuple[dict[str, str | None], dict[str, str | None]]:
        """Return the content of changed sources that are at rest, and their stamps."""
        contents, glances = {}, {}
        for source in self.sources:
            now = self.glance(source)
            rests = source in self.last_glances and self.last_glances[source] == now
            if now is None or (rests and self.settled.get(source) != now):
                content = self.content(source)
                if self.glance(source) == now:
                    contents[source], glances[source] = content, now
            self.last_glances[source] = now
        return contents, glances

    def _read_memory(self) -> Memory:
        try:
            return json.loads(self.file.read_text())
        except (OSError, ValueError):
            return Memory(since=secrets.token_hex(8), changes=0, digests={})


def shorten_digest(digest: str | None) -> str:
    """Return a digest shortened for people."""
    return "nothing" if digest is None else digest if len(digest) < 32 else digest[:12]
