"""Files that can be removed from a checkout, the disk space that they free, and their removal."""

import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lineage.artifacts.objects import Objects
from lineage.layout import Layout
from lineage.records import Record
from schemas.atomic_write import is_fragment
from schemas.errors import PlanError

QUIET = 3600.0
"""Seconds without a write after which a temporary file counts as left over."""
PASSED_OVER = frozenset({".git", ".dvc", ".posttrain", ".venv", "node_modules"})
BLOCK = 512
"""Bytes of a block as `stat` counts them."""


@dataclass(frozen=True)
class Garbage:
    """Files that are no longer needed."""

    artifacts: tuple[Record, ...]
    objects: tuple[Path, ...]
    """Files of DVC's cache that only those artifacts named."""
    temporaries: tuple[Path, ...]
    """Temporary files that killed processes left in DVC's cache."""
    works: tuple[Path, ...]
    """Folders of unfinished steps that no run will continue."""
    bases: tuple[Path, ...] = ()
    """Bases that were converted for other programs, of adapters that are not kept."""

    @property
    def paths(self) -> list[Path]:
        """All paths to remove."""
        folders = [Path(record["folder"]) for record in self.artifacts]
        return [*folders, *self.objects, *self.temporaries, *self.works, *self.bases]


def find_unneeded_objects(layout: Layout, remaining: Iterable[Record], removed: Iterable[Record]) -> Iterator[Path]:
    """Yield cached files that only removed artifacts name, and no record of DVC in the checkout."""
    needed = {name for record in remaining for name in list_object_names(record)} | set(_find_tracked(layout))
    objects = Objects(layout.dvc_cache)
    for name in sorted({name for record in removed for name in list_object_names(record)} - needed):
        if objects.path(name).is_file():
            yield objects.path(name)


def list_object_names(record: Record) -> Iterator[str]:
    """Yield the names in DVC's cache of all files in an artifact's outputs."""
    for output in record["outputs"].values():
        yield output["dvc"]
        yield from (file["md5"] for file in output["files"])


def _find_tracked(layout: Layout) -> Iterator[str]:
    """Yield the objects that `*.dvc` and `dvc.lock` of the checkout name, and those in the folders among them."""
    objects = Objects(layout.dvc_cache)
    for name in {name for file in _find_records(layout.root) for name in _find_digests(_parse_record(file))}:
        yield name
        listing = objects.path(name)
        if name.endswith(".dir") and listing.is_file():
            yield from (entry["md5"] for entry in json.loads(listing.read_bytes()))


def _parse_record(file: Path) -> Any:
    """Return the content of a DVC record. Raise PlanError if it cannot be read, as its objects must stay."""
    try:
        return yaml.safe_load(file.read_bytes())
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise PlanError(f"{file} cannot be read, so what it keeps is unknown and nothing is removed") from error


def _find_records(root: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in PASSED_OVER]
        yield from (Path(base, name) for name in names if name.endswith(".dvc") or name == "dvc.lock")


def _find_digests(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("md5"), str):
            yield value["md5"]
        for item in value.values():
            yield from _find_digests(item)
    elif isinstance(value, list):
        for item in value:
            yield from _find_digests(item)


def find_temporaries(layout: Layout) -> list[Path]:
    """Return temporary files in DVC's cache that were not written to for an hour."""
    before = time.time() - QUIET
    fragments = (p for p in layout.dvc_cache.glob("*/.*") if is_fragment(p) and p.is_file())
    return sorted(p for p in fragments if p.stat().st_mtime < before)


def count_freed_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes freed on disk: the blocks of folders, and of files if all their hard links are removed.

    A file with another hard link, such as one below data/runs, frees nothing. On file systems that share blocks between
    copies (btrfs, XFS) the result is an upper bound.
    """
    links: dict[tuple[int, int], int] = {}
    total = 0
    for status in _stat_all(paths):
        if not stat.S_ISREG(status.st_mode):
            total += status.st_blocks * BLOCK
            continue
        node = (status.st_dev, status.st_ino)
        links[node] = links.get(node, 0) + 1
        if links[node] == status.st_nlink:
            total += status.st_blocks * BLOCK
    return total


def _stat_all(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    for path in paths:
        try:
            yield path.lstat()
        except FileNotFoundError:
            continue
        if path.is_dir():
            for base, folders, names in os.walk(path):
                yield from (Path(base, name).lstat() for name in (*folders, *names))


def remove_garbage(layout: Layout, garbage: Garbage) -> None:
    """Remove garbage; an artifact is renamed first, so that none is ever incomplete. Work folders are not touched.

    After an interruption, the next call finds and removes the rest.
    """
    trash = layout.state / "trash"
    for record in garbage.artifacts:
        trash.mkdir(parents=True, exist_ok=True)
        gone = trash / f"{Path(record['folder']).name}-{secrets.token_hex(4)}"
        Path(record["folder"]).rename(gone)
    for path in (*garbage.objects, *garbage.temporaries):
        path.unlink(missing_ok=True)
    for folder in (*garbage.bases, trash):
        shutil.rmtree(folder, ignore_errors=True)
