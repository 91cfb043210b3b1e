"""Artifacts that somebody wants to keep, by key, in `.posttrain/keepsakes.json`."""

import json
from datetime import UTC, datetime

from filelock import FileLock

from lineage.layout import Layout
from schemas.whole_files import write_whole

FILE = "keepsakes"


def keepsakes(layout: Layout) -> dict[str, dict[str, str]]:
    """Key to what was pinned: the `word` it was called by, and `since` when (UTC, ISO 8601)."""
    file = layout.state / f"{FILE}.json"
    return dict(json.loads(file.read_text())) if file.is_file() else {}


def pin(layout: Layout, keys: tuple[str, ...], word: str) -> None:
    """Keep these artifacts, and with them all that they were made from."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    _change(layout, {key: {"word": word, "since": now} for key in keys}, ())


def unpin(layout: Layout, keys: tuple[str, ...]) -> None:
    """Keep them no longer than others."""
    _change(layout, {}, keys)


def _change(layout: Layout, more: dict[str, dict[str, str]], less: tuple[str, ...]) -> None:
    layout.make_state()
    file = layout.state / f"{FILE}.json"
    with FileLock(layout.state / f"{FILE}.lock"):
        kept = {key: said for key, said in (keepsakes(layout) | more).items() if key not in less}
        write_whole(file, json.dumps(kept, indent=1) + "\n")
