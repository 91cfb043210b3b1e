"""Damaged artifacts: restored from DVC's cache if it holds them, else produced again; the audit log records both."""

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
MAX_DAMAGES = 20
"""Most damages of one artifact that an entry names."""


def restore_damaged(steps: Iterable[Step], layout: Layout) -> RestoredFiles:
    """Restore damaged artifacts of the steps where DVC's cache has all of them; return the restored files by step.

    An artifact that another process works on is left to that process.
    """
    store, restored = Store(layout), {}
    for step in steps:
        if not store.is_restorable(store.examine(step.kind, step.key)):
            continue
        work = layout.work(step.key)
        with try_lock(work) as is_locked:
            condition = store.examine(step.kind, step.key)
            if is_locked and store.is_restorable(condition):
                restored[step.name] = _restore(store, condition)
                shutil.rmtree(work, ignore_errors=True)
    return restored


def find_or_restore(store: Store, step: Step) -> Manifest | None:
    """Return the complete artifact of a step, restored if need be; None if it must be made. The step's lock is held.

    The audit log records what is damaged of an artifact that will be made again.
    """
    condition = store.examine(step.kind, step.key)
    if not condition.is_complete and store.is_restorable(condition):
        _restore(store, condition)
        condition = store.examine(step.kind, step.key)
    if condition.damages:
        damages = [str(damage) for damage in condition.damages[:MAX_DAMAGES]]
        count = len(condition.damages)
        append(store.layout, "artifact damaged", kind=step.kind, key=step.key, damages=damages, count=count)
    return condition.manifest if condition.is_complete else None


def _restore(store: Store, condition: Condition) -> list[str]:
    made = condition.manifest
    assert made is not None
    store.restore(made)
    files = [damage.path for damage in condition.damages]
    append(store.layout, "artifact restored", step=made.step, kind=made.kind, key=made.key, files=files)
    return files


def log_published(layout: Layout, manifest: Manifest) -> Entry:
    """Record what a step made, and which key signed it."""
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
