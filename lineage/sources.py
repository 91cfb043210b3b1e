"""What comes from outside a recipe: `path:`, `hub:` and `mlflow:` references, as a folder with a content digest."""

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lineage.digest_cache import DigestCache, scan
from lineage.digests import content_of
from lineage.layout import Layout
from lineage.outside import check_outside
from lineage.store import Store
from schemas.errors import PlanError

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Source:
    """A folder from outside and the digest that stands for it in keys."""

    folder: Path
    digest: str
    step: str | None = None
    key: str | None = None
    output: str | None = None
    """What made it, where a step of this checkout did: lineage goes on there."""


def find_source(reference: str, layout: Layout, folders: Iterable[Path]) -> Source:
    """Resolve a reference; relative paths are looked for below each of `folders`. Raises PlanError."""
    scheme, _, rest = reference.partition(":")
    folders = tuple(folders)
    check_outside(reference, layout, folders)
    return {"path": _path, "hub": _hub, "mlflow": _mlflow}[scheme](rest, layout, folders)


def _path(rest: str, layout: Layout, folders: tuple[Path, ...]) -> Source:
    for base in folders:
        found = base / Path(rest).expanduser()
        if found.is_dir():
            return Source(found.resolve(), folder_content(found.resolve(), layout))
        if found.exists():
            raise PlanError(f"path:{rest} is a file; name the folder that holds it")
    looked = ", ".join(str(base) for base in folders)
    raise PlanError(f"path:{rest}: no such folder; relative paths start at {looked}")


def folder_content(folder: Path, layout: Layout) -> str:
    """Content digest of a folder from outside; a file is hashed once per change."""
    files = scan(folder, links=True).files
    digests = DigestCache(layout).digests(folder, files, links=True)
    if lost := next((name for name, digest in digests.items() if not digest), None):
        raise PlanError(f"{folder / lost}: cannot be read")
    return content_of(digests)


def check_source(reference: str, source: Source, layout: Layout) -> None:
    """Raises PlanError when a file of the hub's cache is not what its name there says.

    That cache keeps files in `blobs/`, named by their sha256 or, small ones, by their git hash; a file that is kept in
    another way cannot be checked. Folders and artifacts are checked where they are found (`find_source`).
    """
    if not reference.startswith("hub:"):
        return
    files = scan(source.folder, links=True).files
    blobs = {name: (source.folder / name).resolve().name for name in files if (source.folder / name).is_symlink()}
    large = {name: stamp for name, stamp in files.items() if SHA256.fullmatch(blobs.get(name, ""))}
    digests = DigestCache(layout).digests(source.folder, large, links=True)
    small = {name for name, blob in blobs.items() if COMMIT.fullmatch(blob)}
    digests |= {name: _git_hash((source.folder / name).read_bytes()) for name in small}
    for name in sorted(digests):
        if digests[name] != blobs[name]:
            advice = f"delete {(source.folder / name).resolve()} and fetch it again with `hf download`"
            raise PlanError(f"{reference}: {name} is not the file that was fetched: its hash differs; {advice}")


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _hub(rest: str, layout: Layout, folders: tuple[Path, ...]) -> Source:
    """A model or a data set in the local cache of the hub; the digest is its commit. Nothing is downloaded here."""
    name, _, revision = rest.partition("@")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    for kind in ("models", "datasets"):
        repository = cache / f"{kind}--{name.replace('/', '--')}"
        pointer = repository / "refs" / (revision or "main")
        commit = revision if COMMIT.fullmatch(revision) else pointer.read_text().strip() if pointer.is_file() else None
        if commit is not None and (repository / "snapshots" / commit).is_dir():
            return Source(repository / "snapshots" / commit, commit)
    wanted = f"{name} --revision {revision}" if revision else name
    raise PlanError(
        f"hub:{rest} is not in the local cache; fetch it first: hf download {wanted} (--repo-type dataset for data)"
    )


def registered_version(rest: str, layout: Layout) -> "ModelVersion":
    """The version that `name@alias` or `name@number` means (default: the champion). Raises PlanError."""
    from lineage.registry import client, is_empty  # mlflow takes seconds to import, and few need it

    name, _, version = rest.partition("@")
    if is_empty(layout):
        raise PlanError(f"mlflow:{rest}: no such model version: nothing was registered in this checkout yet")
    mlflow = client(layout)
    from mlflow.exceptions import MlflowException

    try:
        find = mlflow.get_model_version if version.isdigit() else mlflow.get_model_version_by_alias
        return find(name, version or "champion")
    except MlflowException as error:
        raise PlanError(f"mlflow:{rest}: no such model version: {error.message}") from error


def _mlflow(rest: str, layout: Layout, folders: tuple[Path, ...]) -> Source:
    """A registered version, by alias or number, back to the artifact that its tag `key` names."""
    found = registered_version(rest, layout)
    store = Store(layout)
    key = found.tags.get("key", "")
    if manifest := store.with_key(key):
        output = next((o for o in manifest.outputs if o == found.tags.get("output")), next(iter(manifest.outputs)))
        if not (state := store.examine(manifest.kind, key)).is_whole:
            raise PlanError(
                f"mlflow:{rest}: its artifact {key[:16]} is damaged: {state.text}; fetch it: posttrain pull"
            )
        folder = store.folder(manifest) / "outputs" / output
        return Source(folder, manifest.outputs[output].digest, manifest.step, key, output)
    raise PlanError(f"mlflow:{rest}: its artifact {key[:16] or '?'} is not in this checkout; run `dvc pull`")
