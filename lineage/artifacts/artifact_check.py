"""Checks that an artifact is the published one, before it is promoted or served."""

from collections.abc import Iterator

from lineage.artifacts.signature import SIGNATURE, check_signature
from lineage.artifacts.store import Store
from lineage.audit.log import Entry, read_entries
from lineage.keys import load_trusted_keys
from lineage.layout import Layout
from schemas.adapter_base import BaseRecord, read_record
from schemas.errors import PlanError
from schemas.manifest import Manifest


def check_artifact(layout: Layout, manifest: Manifest) -> None:
    """Rehash an artifact, check its signature and compare it with the log; likewise the bases of its adapters.

    Raise PlanError if one differs from what was published.
    """
    store = Store(layout)
    folder = store.folder(manifest)
    problems = store.verify(manifest)
    if (folder / SIGNATURE).is_file():
        problems += check_signature(folder, load_trusted_keys(layout))
    problems += _compare_with_log(layout, manifest)
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise PlanError(f"{manifest.step} ({manifest.key[:16]}) is not what was published: {problems[0]}{more}")
    for output in manifest.outputs:
        record = read_record(store.output_folder(manifest.kind, manifest.key, output))
        if record is None or record.key is None:
            continue
        if problem := find_base_problem(store, record):
            raise PlanError(f"{manifest.step} ({manifest.key[:16]}): {problem}")
        base = store.with_key(record.key)
        assert base is not None
        check_artifact(layout, base)


def find_base_problem(store: Store, record: BaseRecord) -> str | None:
    """Return why the artifact with the base of an adapter is not the one that it was trained over, None if it is."""
    base = store.with_key(str(record.key))
    output = base.outputs.get(str(record.output)) if base else None
    name = f"the base of its adapter, {record.kind} {str(record.key)[:16]},"
    if base is None:
        return f"{name} is missing; fetch it: posttrain pull {str(record.key)[:16]}"
    if base.kind != record.kind or output is None or output.digest != record.digest:
        return f"{name} is not the one that it was trained over"
    return None


def _compare_with_log(layout: Layout, manifest: Manifest) -> Iterator[str]:
    """Yield how an artifact differs from its publication in the log, unless another run's was pulled in its place."""
    entry = _find_publication(layout, manifest.key)
    if entry is None or entry["facts"].get("run") not in (manifest.run, None):
        return
    folder, number = Store(layout).folder(manifest), entry["number"]
    if entry["facts"].get("digests") != {name: output.digest for name, output in manifest.outputs.items()}:
        yield f"{folder}: its digests are not those that entry {number} of the audit log saw"
    if entry["facts"].get("signed_by") and not (folder / SIGNATURE).is_file():
        yield f"{folder / SIGNATURE}: missing, though entry {number} of the audit log saw it"


def _find_publication(layout: Layout, key: str) -> Entry | None:
    """Return the latest entry of the log that says that an artifact was published."""
    publication = None
    for entry in read_entries(layout):
        facts = entry["facts"]
        if entry["action"] == "artifact published" and isinstance(facts, dict) and facts.get("key") == key:
            publication = entry
    return publication
