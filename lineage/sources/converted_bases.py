"""Bases of adapters that were converted for other programs: where they are, and which of them nothing needs.

transformers and peft load an adapter over a folder of safetensors only. A base that is a GGUF file or an adapter itself
is converted once, into the state folder; it can be made again at any time.
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from lineage.artifacts.reclaim import QUIET
from lineage.digests import digest_of
from lineage.layout import Layout
from schemas.adapter_base import BASE, BaseRecord, is_adapter, read_record


def needs_conversion(folder: Path) -> bool:
    """Return whether a folder holds an adapter, with its base beside it, whose base only posttrain loads."""
    base = folder / BASE
    return is_adapter(folder) and (is_adapter(base) or not (base / "config.json").is_file())


def find_converted_base(record: BaseRecord, layout: Layout) -> Path:
    """Return the place of a converted base: one for all adapters over it that were trained in the same precision."""
    identity = {"digest": record.digest, "dtype": record.dtype}
    return _find_folder(layout) / digest_of(identity)[:32]


def find_unneeded_bases(layout: Layout, kept: Iterable[Path]) -> Iterator[Path]:
    """Yield the converted bases of no adapter in `kept`, and what killed conversions left more than an hour ago."""
    folder = _find_folder(layout)
    if not folder.is_dir():
        return
    records = (read_record(adapter) for adapter in kept if is_adapter(adapter))
    needed = {find_converted_base(record, layout) for record in records if record is not None}
    for place in sorted(folder.iterdir()):
        under_way = place.name.startswith(".") and place.stat().st_mtime > time.time() - QUIET
        if place not in needed and not under_way:
            yield place


def _find_folder(layout: Layout) -> Path:
    return layout.state / "cache" / "bases"
