"""Pinned artifacts, by key, in `.posttrain/keepsakes.json`."""

import json
from datetime import UTC, datetime

from filelock import FileLock

from lineage.layout import Layout
from lineage.state_files import Unreadable, parse_json, read_regular
from schemas.atomic_write import write_text_atomically
from schemas.errors import PlanError

FILE = "keepsakes"


def read_pins(layout: Layout) -> dict[str, dict[str, str]]:
    """Return by key the `word` that an artifact was pinned by, and `since` when (UTC, ISO 8601).

    Raise PlanError if the file is none of pins any more: what it kept cannot be known.
    """
    file = layout.state / f"{FILE}.json"
    try:
        pins = parse_json(read_regular(file))
        return {str(key): {"word": str(pin["word"]), "since": str(pin["since"])} for key, pin in pins.items()}
    except Unreadable as error:
        if str(error) == "missing":
            return {}
        raise PlanError(f"{file}: {error}") from error
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise PlanError(f"{file}: not a list of pins; delete it, and pin the artifacts to keep again") from error


def pin_artifacts(layout: Layout, keys: tuple[str, ...], word: str) -> None:
    """Pin these artifacts; their ancestors are then kept too."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    _update(layout, {key: {"word": word, "since": now} for key in keys}, ())


def unpin_artifacts(layout: Layout, keys: tuple[str, ...]) -> None:
    """Unpin these artifacts."""
    _update(layout, {}, keys)


def _update(layout: Layout, added: dict[str, dict[str, str]], removed: tuple[str, ...]) -> None:
    layout.make_state()
    file = layout.state / f"{FILE}.json"
    with FileLock(layout.state / f"{FILE}.lock"):
        pins = {key: pin for key, pin in (read_pins(layout) | added).items() if key not in removed}
        write_text_atomically(file, json.dumps(pins, indent=1) + "\n")
