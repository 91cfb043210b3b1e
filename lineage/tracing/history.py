"""Earlier artifacts by the names of steps, from the index."""

from collections.abc import Iterable, Iterator

from lineage.artifacts.store import read_manifest
from lineage.catalogue.index import Index, query_index
from lineage.layout import Layout
from lineage.records import Record
from schemas.manifest import Manifest

MAX_ARTIFACTS = 50
"""Artifacts of a step that are looked at, the latest ones."""


def find_latest(layout: Layout, recipe: str, steps: Iterable[str]) -> dict[str, Manifest]:
    """Return by step the manifest of its latest artifact in a recipe, without damaged and `--fresh` ones."""
    names = list(steps)

    def find_manifests(index: Index) -> dict[str, Manifest]:
        manifests = {}
        for step in names:
            sql = (
                "select name from artifacts where step = ? and recipe = ? and record is not null order by started desc"
            )
            for (name,) in index.rows(sql, step, recipe):
                manifest = read_manifest(layout.state / "artifacts" / name)
                if manifest and "fresh" not in manifest.identity:
                    manifests[step] = manifest
                    break
        return manifests

    return query_index(layout, find_manifests)


def list_earlier(index: Index, kind: str, step: str, recipe: str) -> Iterator[list[Record]]:
    """Yield records to compare a step with, latest first.

    First those of the same step of the recipe, then of any recipe's step of that name, then of the kind.
    """
    for condition, values in (
        ("kind = ? and step = ? and recipe = ?", (kind, step, recipe)),
        ("kind = ? and step = ?", (kind, step)),
        ("kind = ?", (kind,)),
    ):
        if records := index.latest(condition, *values, most=MAX_ARTIFACTS):
            yield records
