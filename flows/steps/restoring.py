"""Damaged artifacts: what DVC's cache still holds is put back before anything uses them, the rest is made again."""

import shutil
from collections.abc import Iterable

from flows.running.audited import artifact_damaged, artifact_restored
from flows.steps.lock import locked_at_once
from lineage.artifacts.completeness import Condition
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.manifest import Manifest
from schemas.plan import Step

Restored = dict[str, list[str]]
"""Names of steps, each with the files of its artifact that were put back."""


def restore_damaged(steps: Iterable[Step], layout: Layout) -> Restored:
    """Put back what is damaged of the steps' artifacts where DVC's cache has all of it.

    An artifact that another process is at work on is left to that process.
    """
    store, restored = Store(layout), {}
    for step in steps:
        if not store.is_restorable(store.examine(step.kind, step.key)):
            continue
        work = layout.work(step.key)
        with locked_at_once(work) as held:
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
        artifact_damaged(store.layout, step.kind, step.key, [str(damage) for damage in found.damages])
    return found.manifest if found.is_whole else None


def _restore(store: Store, found: Condition) -> list[str]:
    assert found.manifest is not None
    store.restore(found.manifest)
    files = [damage.path for damage in found.damages]
    artifact_restored(store.layout, found.manifest, files)
    return files
