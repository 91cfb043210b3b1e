"""What comes from outside a recipe: `path:`, `hub:` and `mlflow:` references, as a folder with a content digest."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lineage.digests import content_digest, folder_digests
from lineage.layout import Layout
from lineage.outside import check_outside
from lineage.store import Store
from schemas.errors import PlanError

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

COMMIT = re.compile(r"[0-9a-f]{40}")


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
            return Source(found.resolve(), content_digest(folder_digests(found)))
        if found.exists():
            raise PlanError(f"path:{rest} is a file; name the folder that holds it")
    looked = ", ".join(str(base) for base in folders)
    raise PlanError(f"path:{rest}: no such folder; relative paths start at {looked}")


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
        folder = store.folder(manifest) / "outputs" / output
        return Source(folder, manifest.outputs[output].digest, manifest.step, key, output)
    raise PlanError(f"mlflow:{rest}: its artifact {key[:16] or '?'} is not in this checkout; run `dvc pull`")
