"""Whether what was made is still what it was: files, seals, signatures, champions, the index and the audit log."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from lineage.ancestry import traced
from lineage.auditcheck import AuditCheck, check
from lineage.championcheck import champion_problems
from lineage.index import from_manifests
from lineage.indexcheck import index_problems, rebuild_index
from lineage.keycheck import readable_keys
from lineage.keys import Ed25519PublicKey
from lineage.layout import Layout
from lineage.restored import restore_decisions
from lineage.seal import seal_problems
from lineage.signature import SIGNATURE, signature_problems
from lineage.store import MANIFEST, Store, read_manifest
from schemas.errors import PosttrainError
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
    rebuilt: tuple[str, ...] = ()
    """What was written again from manifests and the audit log, because it was asked for."""


@dataclass
class _Count:
    files: int = 0
    signed: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(layout: Layout, word: str | None = None, *, all_signed: bool = False, rebuild: bool = False) -> Verification:
    """Hash every file of the target and all it was made from (default: of everything); compare with what was sealed.

    The audit log, the champions and the index are always checked whole. An artifact without a signature is noted,
    unless the log says that it had one, or `all_signed` asks for one. `rebuild` writes again what follows from
    manifests and log: an index that differs, decisions that are missing. Raises UnknownTarget, and PlanError where the
    named signing key is none.
    """
    log, (keys, _) = check(layout), readable_keys(layout)
    problems = [*log.problems, *champion_problems(layout, log, keys), *(wrong := index_problems(layout))]
    rebuilt = [*restore_decisions(layout, log), *(rebuild_index(layout) if wrong else ())] if rebuild else []
    folders, count = _folders(layout, word), _Count()
    for folder in folders:
        try:
            _look_at(layout, folder, log, keys, count, all_signed=all_signed)
        except (OSError, ValueError, TypeError, KeyError, RecursionError, PosttrainError) as error:
            count.problems.append(f"{folder}: cannot be checked: {type(error).__name__}: {_first_line(error)}")
    problems += count.problems
    notes = (*log.notes, *count.notes)
    return Verification(
        len(folders), count.files, count.signed, len(log.hashes), tuple(problems), notes, tuple(rebuilt)
    )


def _folders(layout: Layout, word: str | None) -> list[Path]:
    """Folders of the artifacts to look at, found by their manifests and not by the index, which may be wrong."""
    if word:
        return [Path(node.record["folder"]) for node in from_manifests(layout, lambda i: traced(i, word)).up]
    return sorted(p for p in (layout.state / "artifacts").glob("*") if p.is_dir())


def _look_at(
    layout: Layout,
    folder: Path,
    log: AuditCheck,
    keys: dict[str, Ed25519PublicKey],
    count: _Count,
    *,
    all_signed: bool,
) -> None:
    """Check one artifact."""
    manifest = read_manifest(folder)
    wrong = _content_problems(Store(layout), folder, manifest)
    count.files += sum(len(output.files) for output in manifest.outputs.values()) if manifest else 0
    if os.path.lexists(folder / SIGNATURE):
        false = signature_problems(folder, keys)
        count.signed += not false and not wrong
        wrong += [line for line in false if line.partition(": ")[0] not in {w.partition(": ")[0] for w in wrong}]
    elif all_signed or (manifest and _was_signed(log, manifest)):
        wrong.append(f"{folder / SIGNATURE}: missing")
    else:
        count.notes.append(f"{folder}: not signed, so anyone who can write here could have made it")
    if manifest:
        wrong += _log_problems(log, folder, manifest)
    count.problems += wrong


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


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
