"""The store of artifacts: content-addressed, published by one rename, and also kept in DVC's cache."""

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from lineage.artifacts.completeness import (
    MANIFEST,
    NOT_OURS,
    OUTPUTS,
    Condition,
    Damage,
    examine_files,
    read_sealed_manifest,
)
from lineage.artifacts.digest_cache import DigestCache, Scan, hash_file, scan_folder
from lineage.artifacts.objects import Objects, copy_file, flush_tree
from lineage.artifacts.published import Keys, compare_with_log
from lineage.artifacts.seal import write_seal
from lineage.artifacts.signature import SIGNATURE, compare_with_signature, write_signature
from lineage.digests import content_digest, dvc_digest, folder_digests
from lineage.keys import load_trusted_keys
from lineage.layout import Layout
from schemas.atomic_write import atomic_file, flush_path
from schemas.errors import StepError
from schemas.manifest import FileDigest, Manifest, Output
from schemas.references import ArtifactType

MAX_COMPLETE = 4096
_complete: dict[tuple[str, tuple[tuple[str, str], ...], tuple[str, ...], frozenset[str]], Manifest] = {}
"""Manifests of artifacts that this process found undamaged, by folder, digests of the files, and trusted keys."""


class Store:
    """Published artifacts of one checkout; a folder with a manifest is always complete."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.objects = Objects(layout.dvc_cache)
        self.digests = DigestCache(layout)

    def find(self, kind: str, key: str) -> Manifest | None:
        """Return the manifest of a published step if its artifact is undamaged, else None."""
        condition = self.examine(kind, key)
        return condition.manifest if condition.is_complete else None

    def examine(self, kind: str, key: str) -> Condition:
        """Compare the files, seal and signature of a key's artifact, and its audit entry; return its condition.

        Files that did not change since they were last hashed are not hashed again (`lineage.artifacts.digest_cache`).
        """
        folder = self.layout.artifact(kind, key)
        if not folder.is_dir():
            return Condition(None, ())
        try:
            scanned = scan_folder(folder)
            digests, keys = self.digests.digests(folder, scanned.files), load_trusted_keys(self.layout)
            condition = self._checked(folder, digests, scanned.strange, keys)
        except OSError as error:
            return _describe_unreadable(error)
        if condition.manifest is None:
            return condition
        damages = list(condition.damages)
        if condition.manifest.key != key:
            damages.append(Damage(MANIFEST, "is of another key"))
        damages += compare_with_log(self.layout, condition.manifest, folder, keys)
        return replace(condition, damages=tuple(damages))

    def _checked(self, folder: Path, digests: Mapping[str, str], strange: tuple[str, ...], keys: Keys) -> Condition:
        """Compare manifest, seal and signature; files with digests that were complete before are not compared again."""
        cache_key = (str(folder), tuple(digests.items()), strange, frozenset(keys))
        if cache_key in _complete:
            return Condition(_complete[cache_key], ())
        condition = examine_files(folder, digests, strange)
        if SIGNATURE in digests or SIGNATURE in strange:
            damages = tuple(Damage(*each) for each in compare_with_signature(folder, digests, keys))
            condition = replace(condition, damages=condition.damages + damages)
        if condition.manifest is not None and condition.is_complete:
            if len(_complete) >= MAX_COMPLETE:
                _complete.clear()
            _complete[cache_key] = condition.manifest
        return condition

    def _condition(self, folder: Path, hashed: Callable[[Scan], Mapping[str, str]]) -> Condition:
        try:
            scanned = scan_folder(folder)
            return examine_files(folder, hashed(scanned), scanned.strange)
        except OSError as error:
            return _describe_unreadable(error)

    def with_key(self, key: str) -> Manifest | None:
        """Return the manifest of a key of any kind, or None if it is missing or damaged."""
        folders = self.layout.state.glob(f"artifacts/*-{key[:16]}") if key else ()
        manifests = (read_manifest(folder) for folder in sorted(folders))
        return next((m for m in manifests if m and m.key == key), None)

    def manifests(self) -> Iterator[Manifest]:
        """Yield all manifests but damaged ones, oldest first."""
        manifests = [read_manifest(p.parent) for p in self.layout.state.glob(f"artifacts/*/{MANIFEST}")]
        yield from sorted((m for m in manifests if m), key=lambda m: (m.started, m.key))

    def folder(self, manifest: Manifest) -> Path:
        """Return the folder of an artifact."""
        return self.layout.artifact(manifest.kind, manifest.key)

    def output_folder(self, kind: str, key: str, name: str) -> Path:
        """Return the folder of a named output."""
        return self.layout.artifact(kind, key) / "outputs" / name

    def describe(self, folder: Path, types: Mapping[str, ArtifactType]) -> dict[str, Output]:
        """Return the digests of the outputs in an unpublished folder; raise StepError if one is missing or empty."""
        outputs = {}
        for name, artifact_type in types.items():
            files = folder_digests(folder / "outputs" / name)
            if not files:
                raise StepError(f"output {name!r} was not written: the step ended without a file in outputs/{name}/")
            digests = {"digest": content_digest(files), "dvc": dvc_digest(files)}
            outputs[name] = Output(type=artifact_type, files=files, **digests)
        return outputs

    def publish(self, folder: Path, manifest: Manifest) -> Manifest:
        """Publish a folder as an artifact: cache, flush, seal, sign, then one rename; an equal artifact stays.

        A damaged artifact of the same key is moved aside, next to `folder`.
        """
        for name, output in manifest.outputs.items():
            self.objects.put_output(folder / "outputs" / name, output)
        flush_tree(folder)
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1))
        flush_path(folder / MANIFEST)
        flush_path(write_seal(folder))
        flush_path(write_signature(self.layout, folder, manifest))
        flush_path(folder)
        final = self.layout.artifact(manifest.kind, manifest.key)
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists() and self.find(manifest.kind, manifest.key) is None:
            final.rename(folder.with_name(f"damaged-{secrets.token_hex(4)}"))
        try:
            folder.rename(final)
        except OSError:
            published = self.find(manifest.kind, manifest.key)
            if published is None:
                raise
            shutil.rmtree(folder)
            return published
        flush_path(final.parent)
        return manifest

    def verify(self, manifest: Manifest) -> list[str]:
        """Rehash every file of an artifact and its cached objects; return one line per difference."""
        folder = self.folder(manifest)
        condition = self._condition(
            folder, lambda listing: {name: hash_file(folder / name)[0] for name in listing.files}
        )
        problems = [f"{folder / damage.path}: {damage.what}" for damage in condition.damages]
        if condition.manifest is not None and condition.manifest != manifest:
            problems.append(f"{folder / MANIFEST}: was replaced meanwhile")
        for output in manifest.outputs.values():
            for object_name in (*(f.md5 for f in output.files), output.dvc):
                if what := self.objects.differs(object_name):
                    problems.append(f"{self.objects.path(object_name)}: {what}")
        return problems

    def is_restorable(self, condition: Condition) -> bool:
        """Return whether DVC's cache, which contains only outputs, has all damaged files."""
        if (
            condition.manifest is None
            or not condition.damages
            or not all(damage.is_output for damage in condition.damages)
        ):
            return False
        return not any(self.objects.differs(file.md5) for _, file in self._damaged(condition, condition.manifest))

    def restore(self, manifest: Manifest) -> list[str]:
        """Restore damaged or missing files of the outputs from DVC's cache; return their paths.

        Other paths below the outputs are removed. Raise StepError if a cached object is damaged too.
        """
        folder, restored = self.folder(manifest), []
        condition = self._condition(
            folder, lambda listing: {name: hash_file(folder / name)[0] for name in listing.files}
        )
        damaged = list(self._damaged(condition, manifest))
        for path, file in damaged:
            if what := self.objects.differs(file.md5):
                raise StepError(f"cannot restore {path}: the object in DVC's cache {what}")
        for damage in condition.damages:
            if damage.is_output and damage.what in NOT_OURS:
                (folder / damage.path).unlink(missing_ok=True)
        for path, file in damaged:
            if path.is_dir():
                shutil.rmtree(path)
            with atomic_file(path) as fresh:
                copy_file(self.objects.path(file.md5), fresh)
                if hash_file(fresh)[0] != file.sha256:
                    raise StepError(f"cannot restore {path}: the object in DVC's cache has another sha256")
            restored.append(str(path))
        return restored

    def _damaged(self, condition: Condition, manifest: Manifest) -> Iterator[tuple[Path, FileDigest]]:
        """Yield the output files to restore: damaged ones, and those below a path that should be a folder."""
        named = {damage.path for damage in condition.damages}
        for name, output in manifest.outputs.items():
            for file in output.files:
                path = f"{OUTPUTS}{name}/{file.path}"
                if path in named:
                    yield self.folder(manifest) / path, file


def _describe_unreadable(error: OSError) -> Condition:
    return Condition(None, (Damage(MANIFEST, f"cannot be read: {error.strerror}"),))


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of an artifact's folder, or None if it is missing or not the sealed one."""
    return read_sealed_manifest(folder)
