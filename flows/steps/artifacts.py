"""Damaged artifacts: what DVC's cache still holds is put back before anything uses them, the rest is made again."""

import shutil
from collections.abc import Iterable

from flows.processes.locks import try_lock
from lineage.artifacts.completeness import Condition
from lineage.artifacts.signature import read_signer_name
from lineage.artifacts.store import Store
from lineage.audit.log import Entry, append
from lineage.layout import Layout
from schemas.manifest import Manifest
from schemas.plan import Step

RestoredFiles = dict[str, list[str]]
"""Names of steps, each with the files of its artifact that were put back."""
MOST_DAMAGES = 20
"""Damages of one artifact that an entry names."""


def restore_damaged(steps: Iterable[Step], layout: Layout) -> RestoredFiles:
    """Put back what is damaged of the steps' artifacts where DVC's cache has all of it.

    An artifact that another process is at work on is left to that process.
    """
    store, restored = Store(layout), {}
    for step in steps:
        if not store.is_restorable(store.examine(step.kind, step.key)):
            continue
        work = layout.work(step.key)
        with try_lock(work) as held:
            found = store.examine(step.kind, step.key)
            if held and store.is_restorable(found):
                restored[step.name] = _restore(store, found)
                shutil.rmtree(work, ignore_errors=True)
    return restored


def find_or_restore(store: Store, step: Step) -> Manifest | None:
    """The whole artifact of a step, restored if need be; None where it is to be made. The step's lock is held.

    The audit log notes what is damaged of an artifact that is made again.
    """
    found = store.examine(step.kind, step.key)
    if not found.is_whole and store.is_restorable(found):
        _restore(store, found)
        found = store.examine(step.kind, step.key)
    if found.damages:
        log_damaged(store.layout, step.kind, step.key, [str(damage) for damage in found.damages])
    return found.manifest if found.is_whole else None


def _restore(store: Store, found: Condition) -> list[str]:
    assert found.manifest is not None
    store.restore(found.manifest)
    files = [damage.path for damage in found.damages]
    log_restored(store.layout, found.manifest, files)
    return files


def log_published(layout: Layout, manifest: Manifest) -> Entry:
    """Note what a step made, and which key signed it."""
    return append(
        layout,
        "artifact published",
        run=manifest.run,
        step=manifest.step,
        kind=manifest.kind,
        key=manifest.key,
        digests={name: output.digest for name, output in manifest.outputs.items()},
        signed_by=read_signer_name(Store(layout).folder(manifest)),
    )


def log_restored(layout: Layout, manifest: Manifest, files: list[str]) -> Entry:
    """Note which files of an artifact were damaged and came back from DVC's cache."""
    return append(layout, "artifact restored", step=manifest.step, kind=manifest.kind, key=manifest.key, files=files)


def log_damaged(layout: Layout, kind: str, key: str, damages: list[str]) -> Entry:
    """Note what is wrong with an artifact that is going to be made again."""
    return append(layout, "artifact damaged", kind=kind, key=key, damages=damages[:MOST_DAMAGES], count=len(damages))
