"""What comes from outside a recipe: `path:`, `hub:` and `mlflow:` references, as a folder with a content digest."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lineage.digests import content_digest, folder_digests
from lineage.layout import Layout
from lineage.store import Store
from schemas.errors import PlanError

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Source:
    """A folder from outside and the digest that stands for it in keys."""

    folder: Path
    digest: str


def find_source(reference: str, layout: Layout, folders: Iterable[Path]) -> Source:
    """Resolve a reference; relative paths are looked for below each of `folders`. Raises PlanError."""
    scheme, _, rest = reference.partition(":")
    return {"path": _path, "hub": _hub, "mlflow": _mlflow}[scheme](rest, layout, tuple(folders))


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
    """A model in the local cache of the hub; the digest is its commit. Nothing is downloaded here."""
    name, _, revision = rest.partition("@")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    pointer = cache / "refs" / (revision or "main")
    commit = revision if COMMIT.fullmatch(revision) else pointer.read_text().strip() if pointer.is_file() else None
    if commit is None or not (cache / "snapshots" / commit).is_dir():
        wanted = f"{name} --revision {revision}" if revision else name
        raise PlanError(f"hub:{rest} is not in the local cache; fetch it first: hf download {wanted}")
    return Source(cache / "snapshots" / commit, commit)


def _mlflow(rest: str, layout: Layout, folders: tuple[Path, ...]) -> Source:
    """A registered version, by alias or number, back to the artifact that its tag `key` names."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    name, _, version = rest.partition("@")
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or layout.mlflow_uri)
    try:
        by_number = version.isdigit()
        found = (client.get_model_version if by_number else client.get_model_version_by_alias)(
            name, version or "champion"
        )
    except MlflowException as error:
        raise PlanError(f"mlflow:{rest}: no such model version: {error.message}") from error
    store = Store(layout)
    for manifest in store.manifests():
        if manifest.key == found.tags.get("key"):
            output = next((o for o in manifest.outputs if o == found.tags.get("output")), next(iter(manifest.outputs)))
            return Source(store.folder(manifest) / "outputs" / output, manifest.outputs[output].digest)
    raise PlanError(
        f"mlflow:{rest}: its artifact {found.tags.get('key', '?')[:16]} is not in this checkout; run `dvc pull`"
    )
