"""Verifies everything that was published: files, seals, signatures, champions, index and audit log."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lineage.artifacts.artifact_check import find_base_problem
from lineage.artifacts.seal import check_seal
from lineage.artifacts.signature import SIGNATURE, check_signature
from lineage.artifacts.store import MANIFEST, Store, read_manifest
from lineage.audit.approvals import decisions_file, encode_decision, parse_decision
from lineage.audit.chain import Chain
from lineage.audit.claims import AuditCheck
from lineage.audit.log import Entry
from lineage.audit.moves import Move, collect_moves
from lineage.catalogue.index import query_manifests
from lineage.keys import Ed25519PublicKey
from lineage.layout import Layout
from lineage.state_files import is_folder, read_json_lines
from lineage.tracing.ancestry import trace_in
from lineage.verification.audit_check import check_audit
from lineage.verification.index_check import check_index, rebuild_index
from lineage.verification.key_check import read_keys
from schemas.adapter_base import read_record
from schemas.atomic_write import atomic_file
from schemas.errors import PosttrainError
from schemas.manifest import Manifest


@dataclass(frozen=True)
class Verification:
    """The result of a verification."""

    artifacts: int
    files: int
    signed: int
    """Number of artifacts with a valid signature."""
    entries: int
    """Number of entries of the audit log."""
    problems: tuple[str, ...]
    """Differences from the published state."""
    notes: tuple[str, ...]
    """Findings that are no problems, such as checks that were not possible."""
    rebuilt: tuple[str, ...] = ()
    """Records that were rewritten from manifests and the audit log on request."""


@dataclass
class _Count:
    files: int = 0
    signed: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(layout: Layout, word: str | None = None, *, all_signed: bool = False, rebuild: bool = False) -> Verification:
    """Hash every file of the target and its ancestors (default: all artifacts) and compare it with the seals.

    The audit log, the champions and the index are always checked completely. A missing signature is a note; it is a
    problem if the log records one or with `all_signed`. `rebuild` rewrites an index that differs from the manifests and
    decisions that are missing. Raise UnknownTarget, and PlanError if the named signing key is invalid.
    """
    log, (keys, _) = check_audit(layout), read_keys(layout)
    problems = [*log.problems, *check_champions(layout, log, keys), *(wrong := check_index(layout))]
    rebuilt = [*restore_decisions(layout, log), *(rebuild_index(layout) if wrong else ())] if rebuild else []
    folders, count = _list_folders(layout, word), _Count()
    for folder in folders:
        try:
            _check_artifact(layout, folder, log, keys, count, all_signed=all_signed)
        except (OSError, ValueError, TypeError, KeyError, RecursionError, PosttrainError) as error:
            count.problems.append(f"{folder}: cannot be checked: {type(error).__name__}: {_first_line(error)}")
    problems += count.problems
    notes = (*log.notes, *count.notes)
    return Verification(
        len(folders), count.files, count.signed, len(log.hashes), tuple(problems), notes, tuple(rebuilt)
    )


def _list_folders(layout: Layout, word: str | None) -> list[Path]:
    """Return the folders of the artifacts to check, by their manifests: the index may be wrong."""
    if word:
        return [Path(node.record["folder"]) for node in query_manifests(layout, lambda i: trace_in(i, word)).up]
    return sorted(p for p in (layout.state / "artifacts").glob("*") if p.is_dir())


def _check_artifact(
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
    problems = _check_content(Store(layout), folder, manifest)
    count.files += sum(len(output.files) for output in manifest.outputs.values()) if manifest else 0
    if os.path.lexists(folder / SIGNATURE):
        signature_problems = check_signature(folder, keys)
        count.signed += not signature_problems and not problems
        problems += [
            line
            for line in signature_problems
            if line.partition(": ")[0] not in {w.partition(": ")[0] for w in problems}
        ]
    elif all_signed or (manifest and _was_signed(log, manifest)):
        problems.append(f"{folder / SIGNATURE}: missing")
    else:
        count.notes.append(f"{folder}: not signed, so anyone who can write here could have made it")
    if manifest:
        problems += _compare_with_log(log, folder, manifest)
    count.problems += problems


def _check_content(store: Store, folder: Path, manifest: Manifest | None) -> list[str]:
    if manifest is None:
        return check_seal(folder) or [f"{folder / MANIFEST}: not a manifest"]
    if store.folder(manifest) != folder:
        return [f"{folder}: the manifest is of another key"]
    records = (read_record(folder / "outputs" / output) for output in manifest.outputs)
    bases = (find_base_problem(store, record) for record in records if record is not None and record.key is not None)
    return [*store.verify(manifest), *(f"{folder}: {problem}" for problem in bases if problem)]


def _was_signed(log: AuditCheck, manifest: Manifest) -> bool:
    return manifest.key in log.published and log.published[manifest.key]["facts"].get("signed_by") is not None


def _compare_with_log(log: AuditCheck, folder: Path, manifest: Manifest) -> list[str]:
    """Return digests that differ from those recorded at publication."""
    entry = log.published.get(manifest.key)
    if entry is None or entry["facts"].get("run") not in (manifest.run, None):  # another one was pulled in its place
        return []
    if entry["facts"].get("digests") == {name: output.digest for name, output in manifest.outputs.items()}:
        return []
    return [f"{folder / MANIFEST}: its digests are not those that entry {entry['number']} of the audit log saw"]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def check_champions(layout: Layout, audit: AuditCheck, keys: dict[str, Ed25519PublicKey]) -> list[str]:
    """Return a line for each missing artifact that a champion, now or before, needs.

    Earlier champions are skipped if an entry of the log removed them. Each entry of the log counts on its own, even if
    other entries do not verify.
    """
    moves = collect_moves(Chain(tuple(audit.moves), None, frozenset(), None), keys)
    return [line for name in sorted(moves) for line in dict.fromkeys(_find_missing(layout, audit, name, moves[name]))]


def _find_missing(layout: Layout, audit: AuditCheck, name: str, moves: list[Move]) -> Iterator[str]:
    now = moves[-1].artifact
    for move in reversed(moves):
        is_now = move.artifact == now
        who = f"the champion of {name}, version {move.version}" if is_now else f"version {move.version} of {name}"
        yield from _check_presence(layout, audit, move.key, who if is_now else f"{who}, champion before", is_now)
        if (evidence := move.evidence.get("key")) is not None:
            yield from _check_presence(layout, audit, str(evidence), f"the evaluation that proved {who}", is_now)


def _check_presence(layout: Layout, audit: AuditCheck, key: str, what: str, is_needed: bool) -> Iterator[str]:
    folders = layout.state.glob(f"artifacts/*-{key[:16]}") if key.isalnum() else ()
    if not any(map(is_folder, folders)) and (is_needed or key not in audit.removed):
        yield f"{layout.state / 'artifacts'}: {what} ({key[:16]}), is missing; fetch it, or make it again"


def restore_decisions(layout: Layout, audit: AuditCheck) -> list[str]:
    """Write every file of decisions that differs from the log again; return their paths."""
    expected: dict[str, list[Entry]] = {}
    for _, entry in sorted(audit.decisions.items()):
        expected.setdefault(str(entry["facts"].get("key")), []).append(entry)
    restored = []
    for key, entries in expected.items():
        path, lines = decisions_file(layout, key), [parse_decision(entry) for entry in entries]
        if read_json_lines(path) != lines:
            with atomic_file(path) as fresh:
                fresh.write_bytes(b"".join(map(encode_decision, lines)))
            restored.append(f"{path}: written again from the audit log")
    return restored
