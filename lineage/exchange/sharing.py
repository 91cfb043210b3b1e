"""Transfer of artifacts to and from a DVC remote, with everything that they were made from."""

import json
import secrets
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lineage.artifacts.objects import copy_file, flush_tree
from lineage.artifacts.reclaim import list_object_names
from lineage.artifacts.seal import check_seal
from lineage.artifacts.signature import read_signer_name
from lineage.artifacts.store import MANIFEST, Store, read_manifest
from lineage.audit.moves import registered_model_name
from lineage.digests import digest_file, digest_of
from lineage.exchange.remote import Remote, open_remote
from lineage.keys import ensure_keys_folder, key_name, load_public_key, load_trusted_keys
from lineage.layout import Layout
from lineage.records import Record, read_record, read_records
from lineage.registry.registered import ALIAS
from lineage.tracing.ancestry import trace
from lineage.tracing.evidence import collect_evidence, find_promoting_evaluations
from lineage.tracing.pulled_evidence import adopt_evidence, find_move, read_pulled_entries
from schemas.atomic_write import atomic_file, flush_path
from schemas.base import JsonObject
from schemas.errors import PlanError, StepError
from schemas.manifest import Manifest
from schemas.suggestions import suggest

ARTIFACTS, RUNS, KEYS, EVIDENCE = "artifacts", "runs", "keys", "evidence"


@dataclass(frozen=True)
class Moved:
    """The result of a transfer."""

    records: list[Record]
    """Records of the artifacts that were sent or fetched."""
    there: int
    """Number of artifacts that the destination had already."""
    objects: int
    """Number of files of DVC's cache that were sent or fetched."""
    strangers: tuple[str, ...] = ()
    """Untrusted keys that signed fetched artifacts."""
    trusted: tuple[str, ...] = ()
    """Keys that are trusted from now on."""


def push(layout: Layout, name: str | None, word: str | None) -> Moved:
    """Send the artifacts of a target with all that they were made from, or everything.

    With a registered model go the evaluations that promoted it, and a file with gates, approvals and moves.
    Raise UnknownTarget, PlanError, StepError.
    """
    traced = trace(layout, word) if word else None
    chosen = [Path(node.record["folder"]) for node in traced.up] if traced else _list_folders(layout)
    evidence = None
    if word is not None and traced is not None and word.startswith("mlflow:"):
        evidence = collect_evidence(layout, traced.target.keys[0])
        for key in find_promoting_evaluations(evidence):
            chosen += [Path(node.record["folder"]) for node in trace(layout, key).up]
    chosen = list(dict.fromkeys(chosen))  # an evaluation and its model have ancestors in common
    manifests = {folder: _require_manifest(folder) for folder in chosen}
    records = [record for folder in chosen if (record := read_record(folder))]
    with open_remote(layout, name) as place:
        new = {f: m for f, m in manifests.items() if not place.has(ARTIFACTS, f.name, MANIFEST)}
        # Also for artifacts that the remote has: its files may have been removed while their manifests were kept.
        sent = place.send({name for record in records for name in list_object_names(record)})
        for folder in new:
            for file in _list_record_files(folder):
                place.put(folder / file, ARTIFACTS, folder.name, *PurePosixPath(file).parts)
        for run in {manifest.run for manifest in manifests.values()} | ({word} if word else set()):
            if (plan := layout.run(run) / "plan.json").is_file():
                place.put(plan, RUNS, run, "plan.json")
        if evidence is not None:
            _send_evidence(place, layout, evidence)
        _send_keys(place, layout, _collect_signers(new))
    return Moved([r for r in records if Path(r["folder"]) in new], len(manifests) - len(new), sent)


def pull(layout: Layout, name: str | None, word: str | None, *, trust: bool) -> Moved:
    """Fetch the artifacts of a target with all that they were made from, or everything.

    Every byte is compared with the manifest before an artifact appears. With `trust`, the keys that signed are trusted
    here from now on. Raise UnknownTarget, PlanError, StepError.
    """
    scratch = layout.state / "pull" / secrets.token_hex(4)
    try:
        with open_remote(layout, name) as place:
            keys = _find_wanted(place, Layout(scratch), word)
            store = Store(layout)
            missing = [r for r in keys if store.find(r["kind"], r["key"]) is None]
            fetched = place.fetch({name for record in missing for name in list_object_names(record)}) if missing else 0
            for record in missing:
                _adopt(place, layout, Path(record["folder"]))
            _fetch_evidence(place, layout, keys)
            signers = _collect_signers(layout.artifact(r["kind"], r["key"]) for r in keys)
            added = _trust_keys(place, layout, signers - set(load_trusted_keys(layout))) if trust else ()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    strangers = tuple(sorted(signers - set(load_trusted_keys(layout))))
    return Moved(missing, len(keys) - len(missing), fetched, strangers, added)


def _send_evidence(place: Remote, layout: Layout, evidence: JsonObject) -> None:
    with tempfile.TemporaryDirectory(dir=layout.state) as scratch:
        file = Path(scratch, f"{evidence['model']['key']}.json")
        file.write_text(json.dumps(evidence, indent=1, ensure_ascii=False) + "\n")
        place.put(file, EVIDENCE, file.name)


def _fetch_evidence(place: Remote, layout: Layout, records: Iterable[Record]) -> None:
    """Fetch the evidence of artifacts that the remote has; its signatures are checked when it is shown."""
    there = set(place.names(EVIDENCE))
    for key in (record["key"] for record in records if f"{record['key']}.json" in there):
        with tempfile.TemporaryDirectory(dir=layout.state) as scratch:
            file = Path(scratch, f"{key}.json")
            place.get(file, EVIDENCE, file.name)
            adopt_evidence(layout, key, file.read_bytes())


def _find_wanted(place: Remote, scratch: Layout, word: str | None) -> list[Record]:
    """Return the records to fetch; `scratch` receives the remote's manifests and plans, to resolve the target."""
    names = [name for name in place.names(ARTIFACTS) if PurePosixPath(name).name == MANIFEST]
    for name in names:
        folder = PurePosixPath(name).parts[0]
        _check_path(name)
        place.get(scratch.state / ARTIFACTS / folder / MANIFEST, ARTIFACTS, folder, MANIFEST)
    if not names:
        raise PlanError(f"{place.label} has no artifacts of posttrain; send some there: posttrain push --all")
    if word is None:
        return read_records(scratch)
    if place.has(RUNS, word, "plan.json"):
        place.get(scratch.run(word) / "plan.json", RUNS, word, "plan.json")
    words = _find_pushed_champion(place, scratch, word) if word.startswith("mlflow:") else [word]
    folders = dict.fromkeys(str(node.record["folder"]) for each in words for node in trace(scratch, each).up)
    return [record for folder in folders if (record := read_record(folder)) is not None]


def _find_pushed_champion(place: Remote, scratch: Layout, word: str) -> list[str]:
    """Return the keys of a registered model that was pushed, by the remote's evidence, and of what promoted it.

    Raise PlanError if there is none.
    """
    for name in place.names(EVIDENCE):
        _check_path(name)
        place.get(scratch.state / EVIDENCE / name, EVIDENCE, name)
    name, _, version = word.removeprefix("mlflow:").partition("@")
    moves = [move for entry in read_pulled_entries(scratch) if (move := find_move(entry, name)) is not None]
    chosen = [move for move in moves if version in ("", ALIAS, str(move.version))]
    if not chosen:
        names = sorted({registered_model_name(entry) for entry in read_pulled_entries(scratch)} - {"None"})
        raise PlanError(f"{place.label} has no {word}; {suggest(name, names, 'champions that were pushed')}")
    latest = max(chosen, key=lambda move: move.number)
    evaluation = str(latest.evidence.get("key", ""))
    there = {record["key"] for record in read_records(scratch)}
    return [key for key in (latest.key, evaluation) if key in there]


def _adopt(place: Remote, layout: Layout, folder: Path) -> None:
    """Publish a fetched artifact: compare everything, then rename once."""
    name = folder.name
    for file in place.names(ARTIFACTS, name):
        _check_path(file)
        place.get(folder / file, ARTIFACTS, name, *PurePosixPath(file).parts)
    manifest = read_manifest(folder)
    wrong = check_seal(folder) if manifest else [f"{name}: its manifest is not the one that was sealed"]
    if manifest and (
        digest_of(manifest.identity) != manifest.key or layout.artifact(manifest.kind, manifest.key).name != name
    ):
        wrong.append(f"{name}: the manifest is of another key")
    store = Store(layout)
    for output, made in manifest.outputs.items() if manifest and not wrong else ():
        for file in made.files:
            _check_path(file.path)
            target = folder / "outputs" / output / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(store.objects.path(file.md5), target)
            if digest_file(target, file.path) != file:
                wrong.append(f"{name}: {output}/{file.path} is not what the manifest says")
    if wrong or manifest is None:
        raise StepError(f"what {place.label} holds is damaged: {wrong[0]}; nothing of this artifact was kept")
    _publish(store, folder, manifest)


def _publish(store: Store, folder: Path, manifest: Manifest) -> None:
    final = store.folder(manifest)
    final.parent.mkdir(parents=True, exist_ok=True)
    flush_tree(folder)
    if final.exists() and store.find(manifest.kind, manifest.key) is None:
        final.rename(folder.with_name(f"damaged-{secrets.token_hex(4)}"))
    try:
        folder.rename(final)
    except OSError:
        if store.find(manifest.kind, manifest.key) is None:  # else a run has published it meanwhile
            raise
    flush_path(final.parent)


def _list_folders(layout: Layout) -> list[Path]:
    return [Path(record["folder"]) for record in read_records(layout)]


def _require_manifest(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    if manifest is None:
        raise PlanError(f"{folder} is damaged and is not sent; see: posttrain lineage --verify")
    return manifest


def _list_record_files(folder: Path) -> list[str]:
    """Return all files of an artifact except its outputs, the manifest last: it marks a complete transfer."""
    files = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return sorted((f for f in files if not f.startswith("outputs/")), key=lambda f: (f == MANIFEST, f))


def _check_path(path: str) -> None:
    """Refuse paths outside an artifact: the names come from the remote."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\\" in path:
        raise StepError(f"the remote names a file {path!r}, which does not belong into an artifact")


def _collect_signers(folders: Iterable[Path]) -> set[str]:
    return {key for folder in folders if (key := read_signer_name(folder)) is not None}


def _send_keys(place: Remote, layout: Layout, keys: Iterable[str]) -> None:
    """Send the public halves of keys."""
    trusted = load_trusted_keys(layout)
    with tempfile.TemporaryDirectory(dir=layout.state) as scratch:
        for key in sorted(set(keys) & set(trusted)):
            file = Path(scratch, f"{key}.pub")
            file.write_bytes(trusted[key].public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
            place.put(file, KEYS, file.name)


def _trust_keys(place: Remote, layout: Layout, keys: Iterable[str]) -> tuple[str, ...]:
    """Add trusted keys; return those that the remote has.

    Raise StepError if the name of a key does not match its content.
    """
    trusted_now = []
    for key in sorted(keys):
        if not place.has(KEYS, f"{key}.pub"):
            continue
        file = ensure_keys_folder(layout) / "trusted" / f"{key}.pub"
        with atomic_file(file) as fresh:
            place.get(fresh, KEYS, file.name)
            if key_name(load_public_key(fresh)) != key:
                raise StepError(f"{place.label} has another key than {key[:16]} under its name; it is not trusted")
        trusted_now.append(key)
    return tuple(trusted_now)
