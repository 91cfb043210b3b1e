"""Adapters of finished steps: the artifact refers to its base, which is put beside it in a folder of links.

The base is the model output of another artifact, or a model in the hub's cache. The folder of links, in the state
folder, is laid out as adapters of tasks are: adapter files, and the base in `base/`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.sources.adapter_base import link_files, list_base_files
from schemas.adapter_base import BASE, CONFIG, BaseRecord, is_adapter, read_record
from schemas.errors import PlanError


def link_stored_adapter(folder: Path, layout: Layout, find_outside: Callable[[str], tuple[Path, str]]) -> Path:
    """Return a folder with a stored adapter and its base; the folder itself if it needs none.

    `find_outside` returns folder and digest of a reference. Raise PlanError if the base is missing or another one.
    """
    if not is_adapter(folder) or (folder / BASE).is_dir():
        return folder
    try:
        record = read_record(folder)
    except ValueError as error:
        raise PlanError(f"{folder}: the record of its base cannot be read: {error}") from error
    if record is None or (record.key is None and record.source is None):
        return folder
    if record.key is not None:
        base = link_stored_adapter(_find_artifact(record, record.key, layout), layout, find_outside)
    else:
        base = _find_outside(record, find_outside)
    return link_adapter(folder, base, layout)


def _find_artifact(record: BaseRecord, key: str, layout: Layout) -> Path:
    store = Store(layout)
    manifest = store.find(str(record.kind), key)
    output = manifest.outputs.get(str(record.output)) if manifest else None
    if manifest is None or output is None or output.digest != record.digest:
        what = "differs from the one that it was trained over" if manifest else "is missing or damaged here"
        raise PlanError(
            f"the base of an adapter, {record.kind} {key[:16]}, {what}; fetch it (posttrain pull {key[:16]}), or run "
            "its recipe again"
        )
    return store.output_folder(manifest.kind, key, str(record.output))


def _find_outside(record: BaseRecord, find_outside: Callable[[str], tuple[Path, str]]) -> Path:
    folder, digest = find_outside(str(record.source))
    if digest != record.digest:
        raise PlanError(
            f"the base of an adapter, {record.source}, is not the one that it was trained over: its digest is "
            f"{digest[:16]}, was {str(record.digest)[:16]}"
        )
    return folder


def link_adapter(folder: Path, base: Path, layout: Layout) -> Path:
    """Return a folder of links to an adapter and its base; its settings name the base's place."""
    config = json.loads((folder / CONFIG).read_text())
    links = dict(_list_links(folder, base))
    links.pop(CONFIG)
    return link_files(links, layout, config)


def _list_links(folder: Path, base: Path) -> Iterator[tuple[str, Path]]:
    own: Mapping[str, Path] = {file.name: file for file in folder.iterdir() if file.is_file()}
    yield from own.items()
    yield from list_base_files(own, base)
