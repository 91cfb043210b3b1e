"""Private data replaced by placeholders, in all texts of rows, before any other step of a curation reads them."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learning.curation.ledger import detect_type
from learning.curation.private_data import PATTERNS, find_spans
from learning.data.messages import make_batch, unpack_rows
from learning.data.rows import SCHEMAS, Row, open_row_writer, scan_rows
from schemas.private_data import Private
from schemas.stages.curate import Mask

KEPT = frozenset({"id", "family", "source", "role"})
"""Columns and keys of messages that are names, not texts."""
JSON_TEXT = frozenset({"metadata", "arguments"})
"""Columns and keys that may hold JSON as text; the values inside are masked, so that it stays JSON."""


@dataclass
class Masked:
    """How many rows were changed, and how many spans of each kind were replaced."""

    rows: int = 0
    spans: Counter[str] = field(default_factory=Counter)

    @property
    def metrics(self) -> dict[str, int]:
        """Metrics of the step: `masked` rows and `masked.<kind>` spans."""
        return {"masked": self.rows, **{f"masked.{kind}": number for kind, number in sorted(self.spans.items())}}


def mask_rows(data: Path, settings: Mask, folder: Path) -> Masked:
    """Write the rows of `data` to `folder` with private data replaced, and return the counts."""
    artifact_type, masked = detect_type(data), Masked()
    kinds = settings.kinds or list(PATTERNS)
    with open_row_writer(folder, artifact_type) as writer:
        for batch in scan_rows(data, artifact_type):
            rows = [mask_row(row, kinds, settings.placeholder, masked) for row in unpack_rows(batch)]
            writer.write(make_batch(rows, SCHEMAS[artifact_type]))
    return masked


def mask_row(row: Row, kinds: Sequence[Private], placeholder: str, masked: Masked) -> Row:
    """Return a row with private data replaced: messages with their tool calls, answer, tools and metadata."""
    before = masked.spans.total()

    def mask(text: str) -> str:
        return mask_text(text, kinds, placeholder, masked.spans)

    changed = {name: _mask_value(name, value, mask) for name, value in row.items()}
    masked.rows += masked.spans.total() > before
    return changed


def _mask_value(name: str, value: Any, mask: Callable[[str], str]) -> Any:
    """Return a value with all texts inside masked; keys and names stay."""
    if name in KEPT:
        return value
    if isinstance(value, str):
        return _mask_json(value, mask) if name in JSON_TEXT else mask(value)
    if isinstance(value, dict):
        return {key: _mask_value(key, item, mask) for key, item in value.items()}
    return [_mask_value(name, item, mask) for item in value] if isinstance(value, list) else value


def _mask_json(text: str, mask: Callable[[str], str]) -> str:
    """Return JSON text with the texts inside masked; text that is no JSON object or list is masked as a whole."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return mask(text)
    if not isinstance(value, dict | list):
        return mask(text)
    changed = _mask_value("", value, mask)
    return text if changed == value else json.dumps(changed, ensure_ascii=False)


def mask_text(text: str, kinds: Sequence[Private], placeholder: str, counts: Counter[str]) -> str:
    """Return a text with a placeholder for each span of private data, and count the spans by kind.

    All of spans that overlap is replaced; the first one names the kind, of those the longest, of those the first in
    PATTERNS.
    """
    ordered: list[Private] = [kind for kind in PATTERNS if kind in kinds]
    spans = sorted((start, -end, i) for i, kind in enumerate(ordered) for start, end in find_spans(kind, text))
    parts: list[str] = []
    done = 0
    for start, minus_end, i in spans:
        if start >= done:
            kind = ordered[i]
            parts += [text[done:start], placeholder.replace("{kind}", kind.upper())]
            counts[kind] += 1
        done = max(done, -minus_end)
    return "".join([*parts, text[done:]]) if parts else text
