"""Whether what was made is still what it was: every file, seal and signature, and the audit log."""

from dataclasses import dataclass
from pathlib import Path

from lineage.ancestry import trace
from lineage.auditcheck import AuditCheck, check
from lineage.keys import trusted
from lineage.layout import Layout
from lineage.seal import seal_problems
from lineage.signature import SIGNATURE, signature_problems
from lineage.store import MANIFEST, Store, read_manifest
from schemas.manifest import Manifest


@dataclass(frozen=True)
class Verification:
    """What hashing everything again found."""

    artifacts: int
    files: int
    signed: int
    """Artifacts with a signature that holds."""
    entries: int
    """Entries of the audit log."""
    problems: tuple[str, ...]
    """What is not as it was."""
    notes: tuple[str, ...]
    """What cannot be said, or is worth a word."""


def verify(layout: Layout, word: str | None = None, *, all_signed: bool = False) -> Verification:
    """Hash every file of the target and all it was made from (default: of everything); compare with what was sealed.

    The audit log is always checked whole. An artifact without a signature is noted, unless the log says that it had
    one, or `all_signed` asks for one. Raises UnknownTarget, and PlanError for a key that cannot be read.
    """
    if word:
        folders = [Path(node.record["folder"]) for node in trace(layout, word).up]
    else:
        folders = sorted(p for p in (layout.state / "artifacts").glob("*") if p.is_dir())
    store, log, keys = Store(layout), check(layout), trusted(layout)
    problems, notes, files, signed = list(log.problems), list(log.notes), 0, 0
    for folder in folders:
        manifest = read_manifest(folder)
        wrong = _content_problems(store, folder, manifest)
        files += sum(len(output.files) for output in manifest.outputs.values()) if manifest else 0
        if (folder / SIGNATURE).is_file():
            false = signature_problems(folder, keys)
            signed += not false and not wrong
            wrong += [line for line in false if line.partition(": ")[0] not in {w.partition(": ")[0] for w in wrong}]
        elif all_signed or (manifest and _was_signed(log, manifest)):
            wrong.append(f"{folder / SIGNATURE}: missing")
        else:
            notes.append(f"{folder}: not signed, so whoever can write here could have made it")
        if manifest:
            wrong += _log_problems(log, folder, manifest)
        problems += wrong
    return Verification(len(folders), files, signed, len(log.hashes), tuple(problems), tuple(notes))


def _content_problems(store: Store, folder: Path, manifest: Manifest | None) -> list[str]:
    if manifest is None:
        return seal_problems(folder) or [f"{folder / MANIFEST}: not a manifest"]
    if store.folder(manifest) != folder:
        return [f"{folder}: the manifest is of another key"]
    return store.verify(manifest)


def _was_signed(log: AuditCheck, manifest: Manifest) -> bool:
    return manifest.key in log.published and log.published[manifest.key]["facts"].get("signed_by") is not None


def _log_problems(log: AuditCheck, folder: Path, manifest: Manifest) -> list[str]:
    """Digests that are not those that were noted at publication."""
    entry = log.published.get(manifest.key)
    if entry is None or entry["facts"].get("run") not in (manifest.run, None):  # one that was pulled in its place
        return []
    if entry["facts"].get("digests") == {name: output.digest for name, output in manifest.outputs.items()}:
        return []
    return [f"{folder / MANIFEST}: its digests are not those that entry {entry['number']} of the audit log saw"]
