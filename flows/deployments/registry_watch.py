"""Alerts about changes of the registry that posttrain did not make; each is reported once."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from flows.execution.alerts import send_message
from lineage.audit.log import append
from lineage.layout import Layout
from lineage.registry.client import registry_uri
from lineage.registry.foreign import find_foreign_changes
from schemas.atomic_write import write_text_atomically
from schemas.notify import Notify

EVENT = "posttrain.registry.changed-outside"
"""Name of the event on Prefect's server, for automations."""
PAUSE = 60.0
"""Fewest seconds between two comparisons: each verifies the audit log."""

Receivers = dict[str, list[Notify]]
"""Where to send messages about a registered model, by its name."""


class RegistryWatch:
    """Compares the registry with the audit log whenever one of them has changed."""

    def __init__(self, layout: Layout, emit: Callable[[str, list[str]], object], say: Callable[[str], None]):
        self.layout, self.emit, self.say = layout, emit, say
        self.file = layout.state / "watch" / "registry.json"
        self.compared: tuple[object, ...] | None = None
        """State of the files at the last comparison that left nothing open."""
        self.pending: set[str] = set()
        """Changes seen once: a promotion that is going on looks like one for a moment."""
        self.next = 0.0

    def look(self, receivers: Receivers, clock: Callable[[], float] = time.monotonic) -> None:
        """Report new changes that two comparisons have seen. Raise PlanError as `find_foreign_changes` does."""
        state = self._glance()
        if clock() < self.next or state == self.compared:
            return
        self.next = clock() + PAUSE
        changes = find_foreign_changes(self.layout)
        lines = {line for each in changes.values() for line in each}
        known = self._read_known()
        fresh = lines - known
        settled, self.pending = fresh & self.pending, fresh - self.pending
        for name, each in changes.items():
            if new := [line for line in each if line in settled]:
                self._report(name, new, receivers.get(name, ()))
        if (kept := (known & lines) | settled) != known:
            write_text_atomically(self.file, json.dumps(sorted(kept), indent=1))
        self.compared = None if self.pending or settled else state

    def _report(self, name: str, lines: list[str], receivers: Iterable[Notify]) -> None:
        append(self.layout, "registry changed outside", model=name, changes=lines)
        self.emit(name, lines)
        text = f"registry: {'; '.join(lines)}; see: posttrain champions {name}"
        self.say(text)
        for notify in receivers:
            if "foreign_change" in notify.on and (error := send_message(notify.to, text)):
                self.say(f"not sent: {error}")

    def _glance(self) -> tuple[object, ...]:
        """Return what changes with the registry and the log; a server's address never repeats."""
        if not registry_uri(self.layout).startswith("sqlite:"):
            return (time.monotonic(),)
        names = ("mlflow.db", "mlflow.db-wal", "audit.jsonl")
        return tuple(_stamp(self.layout.state / name) for name in names)

    def _read_known(self) -> set[str]:
        try:
            return set(json.loads(self.file.read_text()))
        except (OSError, ValueError, TypeError):
            return set()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
