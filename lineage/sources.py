"""What comes from outside a recipe: `path:`, `hub:` and `mlflow:` references, as a folder with a content digest."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lineage.digests import content_digest, folder_digests
from lineage.layout import Layout
from lineage.registry import dvc_uri
from lineage.store import Store
from schemas.errors import PlanError

if TYPE_CHECKING:
    from lineage.moves import Move

ALIAS = "champion"
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


@dataclass(frozen=True)
class Registered:
    """What a version of a registered model stands for."""

    name: str
    version: int
    key: str
    digest: str
    output: str
    source: str | None = None
    """What MLflow has for the source of a version that was never champion: it is set once, and tags can be changed."""
    alarms: tuple[str, ...] = ()
    """In what MLflow differs from the log, where the champion is meant."""


def registered_model(rest: str, layout: Layout) -> Registered:
    """What `name@alias` or `name@number` means (default: the champion). Raises PlanError.

    A champion, and a version that was one, are what the log says. Other versions are read from MLflow; what uses them
    compares them with the artifact that they name.
    """
    from lineage.champions import standing  # mlflow takes seconds to import, and few need it
    from lineage.moves import recorded_moves

    name, _, version = rest.partition("@")
    promoted = recorded_moves(layout).get(name, [])
    if version in ("", ALIAS) or not promoted:
        here = standing(layout, name)
        promoted = here.moves
        if version in ("", ALIAS):
            if here.champion is None:
                why = here.alarms[0] if here.alarms else "there is no champion yet; see: posttrain champions"
                raise PlanError(f"mlflow:{rest}: no such model version: {why}")
            return _as_moved(name, here.moves[-1], tuple(here.alarms))
    was = next((move for move in reversed(promoted) if str(move.version) == version), None)
    return _as_moved(name, was) if was else _as_registered(name, version, rest, layout)


def _as_moved(name: str, by: "Move", alarms: tuple[str, ...] = ()) -> Registered:
    return Registered(name, by.version, by.key, by.digest, by.output, alarms=alarms)


def _as_registered(name: str, version: str, rest: str, layout: Layout) -> Registered:
    """A version that was never champion, as MLflow has it."""
    from lineage.registry import client, is_empty

    if is_empty(layout):
        raise PlanError(f"mlflow:{rest}: no such model version: nothing was registered in this checkout yet")
    mlflow = client(layout)
    from mlflow.exceptions import MlflowException

    try:
        find = mlflow.get_model_version if version.isdigit() else mlflow.get_model_version_by_alias
        found = find(name, version)
    except MlflowException as error:
        raise PlanError(f"mlflow:{rest}: no such model version: {error.message}") from error
    said = [str(found.tags.get(tag, "")) for tag in ("key", "digest", "output")]
    return Registered(name, int(found.version), *said, source=str(found.source))


def _mlflow(rest: str, layout: Layout, folders: tuple[Path, ...]) -> Source:
    """A registered version, by alias or number, back to the artifact that was promoted or that its tags name."""
    found = registered_model(rest, layout)
    if found.alarms:
        more = f" and {len(found.alarms) - 1} more" if len(found.alarms) > 1 else ""
        raise PlanError(
            f"mlflow:{rest}: MLflow's registry is not what the audit log made it: {found.alarms[0]}{more}. See: "
            f"posttrain champions {found.name}; put it right: posttrain champions {found.name} --restore"
        )
    manifest = Store(layout).with_key(found.key)
    if manifest is None:
        raise PlanError(f"mlflow:{rest}: its artifact {found.key[:16] or '?'} is not in this checkout; run `dvc pull`")
    output = manifest.outputs.get(found.output)
    is_of_source = output is not None and found.source in (None, dvc_uri(output.dvc))
    if output is None or output.digest != found.digest or not is_of_source:
        raise PlanError(
            f"mlflow:{rest} stands for {found.digest[:16]!r}, output {found.output!r} of {manifest.step} "
            f"({found.key[:12]}), and that is not what is here, or not the source of the version; name the step or key"
        )
    folder = Store(layout).output_folder(manifest.kind, manifest.key, found.output)
    return Source(folder, output.digest, manifest.step, found.key, found.output)
