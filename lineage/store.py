"""The store of artifacts: content-addressed, published by one rename, kept in DVC's own cache layout as well."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lineage.digests import content_digest, dvc_digest, dvc_listing, file_digest, folder_digests
from lineage.layout import Layout
from schemas.errors import StepError
from schemas.manifest import FileDigest, Manifest, Output

MANIFEST = "manifest.json"


class Store:
    """Published artifacts of one checkout. A folder with a manifest is complete; there is nothing in between."""

    def __init__(self, layout: Layout):
        self.layout = layout

    def find(self, kind: str, key: str) -> Manifest | None:
        """The manifest of a published step, None when it has not been published."""
        manifest = self._read(self.layout.artifact(kind, key) / MANIFEST)
        return manifest if manifest and manifest.key == key else None

    def manifests(self) -> Iterator[Manifest]:
        """All manifests, oldest first."""
        found = [self._read(p) for p in self.layout.state.glob(f"artifacts/*/{MANIFEST}")]
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
        """Make an artifact of a folder: files flushed, cached, manifest last, one rename. An equal step that was faster wins."""
        for name, output in manifest.outputs.items():
            self._cache(folder / "outputs" / name, output)
        for file in folder.rglob("*"):
            if file.is_file():
                _flush(file)
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1))
        _flush(folder / MANIFEST)
        final = self.layout.artifact(manifest.kind, manifest.key)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(final)
        except OSError:
            published = self.find(manifest.kind, manifest.key)
            if published is None:
                raise
            shutil.rmtree(folder)
            return published
        _flush(final.parent)
        return manifest

    def verify(self, manifest: Manifest) -> list[str]:
        """Hash every file of an artifact and its cached objects again; one line per difference."""
        wrong = []
        for name, output in manifest.outputs.items():
            folder = self.output_folder(manifest.kind, manifest.key, name)
            here = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
            wrong += [
                f"{folder / extra}: not in the manifest" for extra in sorted(here - {f.path for f in output.files})
            ]
            for file in output.files:
                wrong += self._differences(folder / file.path, file)
                wrong += self._differences(self._object(file.md5), file)
        return wrong

    def restore(self, manifest: Manifest) -> list[str]:
        """Put damaged or missing files back from the cache; returns what was put back, raises StepError when the cache is damaged too."""
        restored = []
        for name, output in manifest.outputs.items():
            folder = self.output_folder(manifest.kind, manifest.key, name)
            for file in output.files:
                if not self._differences(folder / file.path, file):
                    continue
                if problem := self._differences(self._object(file.md5), file):
                    raise StepError(f"cannot restore {folder / file.path}: {problem[0]}")
                _copy(self._object(file.md5), folder / file.path)
                restored.append(str(folder / file.path))
        return restored

    def _cache(self, folder: Path, output: Output) -> None:
        for file in output.files:
            target = self._object(file.md5)
            if not target.is_file():
                _copy(folder / file.path, target, mode=0o444)
        listing = self._object(output.dvc)
        if not listing.is_file():
            listing.parent.mkdir(parents=True, exist_ok=True)
            fresh = listing.with_name(f".{listing.name}.{os.getpid()}")
            fresh.write_bytes(dvc_listing(output.files))
            fresh.chmod(0o444)
            fresh.replace(listing)

    def _object(self, md5: str) -> Path:
        return self.layout.dvc_cache / md5[:2] / md5[2:]

    @staticmethod
    def _differences(path: Path, expected: FileDigest) -> list[str]:
        if not path.is_file():
            return [f"{path}: missing"]
        found = file_digest(path, expected.path)
        return [] if found == expected else [f"{path}: sha256 is {found.sha256[:16]}, was {expected.sha256[:16]}"]

    @staticmethod
    def _read(path: Path) -> Manifest | None:
        try:
            return Manifest.model_validate_json(path.read_text())
        except FileNotFoundError:
            return None
        except (ValueError, json.JSONDecodeError) as error:
            raise StepError(f"{path}: not a manifest: {error}; remove the folder to make the artifact again") from error


def _copy(source: Path, target: Path, mode: int = 0o644) -> None:
    """Copy to a temporary name beside the target, then rename: never half a file, whoever else writes it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, fresh)
    fresh.chmod(mode)
    fresh.replace(target)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
