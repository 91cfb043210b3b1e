"""The store of artifacts: content-addressed, published by one rename, kept in DVC's own cache layout as well."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from lineage.digests import content_digest, digest_file, digest_of, dvc_digest, folder_digests
from lineage.layout import Layout
from lineage.objects import Objects, copy_file, sync, sync_tree
from lineage.seal import manifest_is_sealed, seal_problems, write_seal
from lineage.signature import write_signature
from schemas.errors import StepError
from schemas.manifest import FileDigest, Manifest, Output

MANIFEST = "manifest.json"


class Store:
    """Published artifacts of one checkout. A folder with a manifest is complete; there is nothing in between."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.objects = Objects(layout.dvc_cache)

    def find(self, kind: str, key: str) -> Manifest | None:
        """The manifest of a published step whose files are all there with their sizes, else None.

        A manifest that is not the sealed one counts as none.
        """
        manifest = read_manifest(self.layout.artifact(kind, key))
        return manifest if manifest and manifest.key == key and self._is_whole(manifest) else None

    def _is_whole(self, manifest: Manifest) -> bool:
        for name, output in manifest.outputs.items():
            folder = self.output_folder(manifest.kind, manifest.key, name)
            for file in output.files:
                path = folder / file.path
                if not path.is_file() or path.stat().st_size != file.size:
                    return False
        return True

    def with_key(self, key: str) -> Manifest | None:
        """The manifest of a key, whatever its kind; None when it is not here or damaged."""
        folders = self.layout.state.glob(f"artifacts/*-{key[:16]}") if key else ()
        found = (read_manifest(folder) for folder in sorted(folders))
        return next((m for m in found if m and m.key == key), None)

    def manifests(self) -> Iterator[Manifest]:
        """All manifests but damaged ones, oldest first."""
        found = [read_manifest(p.parent) for p in self.layout.state.glob(f"artifacts/*/{MANIFEST}")]
        yield from sorted((m for m in found if m), key=lambda m: (m.started, m.key))

    def folder(self, manifest: Manifest) -> Path:
        """Folder of an artifact."""
        return self.layout.artifact(manifest.kind, manifest.key)

    def output_folder(self, kind: str, key: str, name: str) -> Path:
        """Folder of a named output."""
        return self.layout.artifact(kind, key) / "outputs" / name

    def describe(self, folder: Path, types: dict[str, str]) -> dict[str, Output]:
        """Digests of the outputs in an unpublished folder; raises StepError when one is missing or empty."""
        outputs = {}
        for name, artifact_type in types.items():
            files = folder_digests(folder / "outputs" / name)
            if not files:
                raise StepError(f"output {name!r} was not written: the step ended without a file in outputs/{name}/")
            digests = {"digest": content_digest(files), "dvc": dvc_digest(files)}
            outputs[name] = Output(type=artifact_type, files=files, **digests)
        return outputs

    def publish(self, folder: Path, manifest: Manifest) -> Manifest:
        """Make an artifact of a folder: cached, flushed, sealed and signed last, one rename; an equal step wins.

        A damaged artifact of the same key is moved aside, next to `folder`.
        """
        for name, output in manifest.outputs.items():
            self.objects.put_output(folder / "outputs" / name, output)
        sync_tree(folder)
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1))
        sync(folder / MANIFEST)
        sync(write_seal(folder))
        sync(write_signature(self.layout, folder, manifest))
        sync(folder)
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
        sync(final.parent)
        return manifest

    def verify(self, manifest: Manifest) -> list[str]:
        """Hash every file of an artifact and its cached objects again; one line per difference."""
        wrong = seal_problems(self.folder(manifest))
        wrong += [f"{self.folder(manifest) / MANIFEST}: {what}" for what in _record_problems(manifest)]
        for name, output in manifest.outputs.items():
            folder = self.output_folder(manifest.kind, manifest.key, name)
            here = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
            wrong += [f"{folder / path}: not in the manifest" for path in sorted(here - {f.path for f in output.files})]
            for file in output.files:
                wrong += [f"{folder / file.path}: {what}" for what in _differences(folder / file.path, file)]
            for object_name in (*(f.md5 for f in output.files), output.dvc):
                if what := self.objects.differs(object_name):
                    wrong.append(f"{self.objects.path(object_name)}: {what}")
        return wrong

    def restore(self, manifest: Manifest) -> list[str]:
        """Put damaged or missing files back from the cache; returns their paths.

        Raises StepError when the cached object is damaged too.
        """
        restored = []
        for name, output in manifest.outputs.items():
            folder = self.output_folder(manifest.kind, manifest.key, name)
            for file in output.files:
                if not _differences(folder / file.path, file):
                    continue
                if what := self.objects.differs(file.md5):
                    raise StepError(f"cannot restore {folder / file.path}: the object in DVC's cache {what}")
                (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
                copy_file(self.objects.path(file.md5), folder / file.path)
                restored.append(str(folder / file.path))
        return restored


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of an artifact's folder; None when there is none or it is not the one that was sealed."""
    if not manifest_is_sealed(folder):
        return None
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None


def _record_problems(manifest: Manifest) -> Iterator[str]:
    if digest_of(manifest.identity) != manifest.key:
        yield "the identity does not give the key"
    for name, output in manifest.outputs.items():
        if (content_digest(output.files), dvc_digest(output.files)) != (output.digest, output.dvc):
            yield f"the digest of output {name} does not fit its files"


def _differences(path: Path, expected: FileDigest) -> list[str]:
    if not path.is_file():
        return ["missing"]
    found = digest_file(path, expected.path)
    return [] if found == expected else [f"sha256 is {found.sha256[:16]}, was {expected.sha256[:16]}"]
