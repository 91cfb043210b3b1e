"""Resolves `path:`, `hub:` and `mlflow:` references to a folder with a content digest."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PureWindowsPath

import yaml

from lineage.artifacts.digest_cache import DigestCache, scan_folder
from lineage.artifacts.store import Store
from lineage.audit.moves import Move, read_moves
from lineage.digests import content_digest_of
from lineage.layout import Layout
from lineage.registry.client import dvc_uri, is_registry_empty, open_client
from lineage.sources.adapter_base import find_base, lacks_base, link_with_base
from lineage.sources.outside import check_outside, find_matching_files
from lineage.sources.stored_adapters import link_stored_adapter
from schemas.data_files import DATA_SUFFIXES, is_data_file
from schemas.errors import PlanError
from schemas.references import is_pattern
from schemas.suggestions import find_nearest

ALIAS = "champion"
GGUF = ".gguf"
"""Suffix of the files that are an input by themselves."""
NO_INPUT = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save the sheet as CSV, and name that file"),
    **dict.fromkeys((".zip", ".tar", ".7z"), "unpack it, and name a file or the folder"),
}
"""What to do with files of other suffixes."""
LISTED = 200
"""Entries of a folder that are looked at for one of nearly the right name."""
COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Source:
    """An outside folder, and its digest as used in keys."""

    folder: Path
    digest: str
    step: str | None = None
    key: str | None = None
    output: str | None = None
    """The step of this checkout that produced it, if any; its lineage continues there."""


def find_source(reference: str, layout: Layout, folders: Iterable[Path]) -> Source:
    """Resolve a reference; relative paths are searched below each of `folders`. Raise PlanError.

    An adapter without its base becomes a folder that has both (`lineage.sources.adapter_base`).
    """
    scheme, _, rest = reference.partition(":")
    folders = tuple(folders)
    check_outside(reference, layout, folders)
    source = {"path": _resolve_path, "hub": _resolve_hub, "mlflow": _resolve_mlflow}[scheme](rest, layout, folders)
    if (completed := complete_adapter(source.folder, layout)) != source.folder:
        return replace(source, folder=completed)
    return _add_base(source, reference, layout, folders) if lacks_base(source.folder) else source


def complete_adapter(folder: Path, layout: Layout) -> Path:
    """Return the folder of an artifact's model; for an adapter, one with its base. Raise PlanError without the base.

    Any other folder is returned as it is.
    """

    def find_outside(reference: str) -> tuple[Path, str]:
        source = find_source(reference, layout, (layout.root,))
        return source.folder, source.digest

    return link_stored_adapter(folder, layout, find_outside)


def _add_base(source: Source, reference: str, layout: Layout, folders: tuple[Path, ...]) -> Source:
    """Return an adapter with its base model; the digest is that of both. Raise PlanError if the base is not here."""
    digests: dict[Path, str] = {}

    def find_hub(name: str) -> Path:
        check_outside(f"hub:{name}", layout, folders)
        base = _resolve_hub(name, layout, folders)
        digests[base.folder] = base.digest
        return base.folder

    base = find_base(source.folder, reference, folders, find_hub)
    digest = digests.get(base) or digest_folder(base, layout)
    both = content_digest_of({"adapter": source.digest, "base": digest})
    return Source(link_with_base(source.folder, base, layout), both)


def _resolve_path(rest: str, layout: Layout, folders: tuple[Path, ...]) -> Source:
    for base in folders:
        folder = base / Path(rest).expanduser()
        if folder.is_dir():
            return Source(folder.resolve(), digest_folder(folder.resolve(), layout))
        if folder.is_file() and (folder.suffix == GGUF or is_data_file(folder.name)):
            name = f"model{GGUF}" if folder.suffix == GGUF else folder.name
            linked = _link_files({name: folder.resolve()}, layout)
            return Source(linked, digest_folder(linked, layout))
        if folder.exists():
            suffixes = ", ".join(DATA_SUFFIXES)
            advice = NO_INPUT.get(folder.suffix.lower(), "name the folder that holds it")
            raise PlanError(
                f"path:{rest} is a file that is no input by itself (those are {GGUF} and {suffixes}, "
                f"also compressed); {advice}"
            )
        if is_pattern(rest) and (files := find_matching_files(base, rest)):
            linked = _link_files(files, layout)
            return Source(linked, digest_folder(linked, layout))
    tracked = next((record for base in folders for record in _list_dvc_records(base, rest) if record.is_file()), None)
    if tracked is not None:
        raise PlanError(f"path:{rest} is tracked by DVC and not checked out; fetch it: dvc pull {tracked}")
    searched = ", ".join(dict.fromkeys(str(base) for base in folders))
    what = "no file of rows matches" if is_pattern(rest) else "no such folder or file"
    place = Path(rest).expanduser()
    if not place.is_absolute():
        where = f"relative paths start at {searched}"
    else:
        where = f"that is {place}" if rest.startswith("~") else "correct the path"
    raise PlanError(f"path:{rest}: {what}; {_suggest_path(rest, folders)}{where}")


def _suggest_path(rest: str, folders: tuple[Path, ...]) -> str:
    """Return advice for a path that is not there: slashes, or the nearest name in its folder; empty without any.

    Names outside of `folders` are not given away.
    """
    if "\\" in rest:
        return f"write it with /: path:{PureWindowsPath(rest).as_posix()}; "
    for base in folders:
        place = base / Path(rest).expanduser()
        if place.is_symlink():
            return "it is a link, and its target is not there; "
        with contextlib.suppress(OSError, ValueError):
            place.parent.resolve().relative_to(base.resolve())
            names = sorted(entry.name for entry in islice(place.parent.iterdir(), LISTED))
            if (near := find_nearest(place.name, names)) is not None:
                return f"did you mean path:{Path(rest).parent / near}? "
    return ""


def _list_dvc_records(base: Path, rest: str) -> list[Path]:
    """Return where DVC records a path below `base`: beside it, or beside a folder that holds it."""
    place = base / Path(rest).expanduser()
    within = [above for above in place.parents if above != base and above.is_relative_to(base)]
    return [one.with_name(f"{one.name}.dvc") for one in (place, *within) if one.name]


def _link_files(files: Mapping[str, Path], layout: Layout) -> Path:
    """Return a folder in the state folder with links to files, as every input is a folder."""
    listing = "\n".join(f"{name}\0{file}" for name, file in sorted(files.items()))
    folder = layout.make_state() / "cache" / "files" / hashlib.sha256(listing.encode()).hexdigest()[:32]
    for name, file in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # the folder's name is that of the links' names and targets
            (folder / name).symlink_to(file)
    return folder


def digest_folder(folder: Path, layout: Layout) -> str:
    """Return the content digest of an outside folder; a file is hashed once per change."""
    files = scan_folder(folder, links=True).files
    digests = DigestCache(layout).digests(folder, files, links=True)
    if lost := next((name for name, digest in digests.items() if not digest), None):
        raise PlanError(f"{folder / lost}: cannot be read")
    return content_digest_of(digests)


def check_source(reference: str, source: Source, layout: Layout) -> None:
    """Raise PlanError if the content of a file in the hub's cache does not match its name there.

    That cache stores files in `blobs/`, named by their sha256 or, for small files, by their git hash; a file stored in
    any other way cannot be checked. `find_source` checks folders and artifacts.
    """
    if not reference.startswith("hub:"):
        return
    files = scan_folder(source.folder, links=True).files
    blobs = {name: (source.folder / name).resolve().name for name in files if (source.folder / name).is_symlink()}
    large = {name: stamp for name, stamp in files.items() if SHA256.fullmatch(blobs.get(name, ""))}
    digests = DigestCache(layout).digests(source.folder, large, links=True)
    small = {name for name, blob in blobs.items() if COMMIT.fullmatch(blob)}
    digests |= {name: _hash_git_blob((source.folder / name).read_bytes()) for name in small}
    for name in sorted(digests):
        if digests[name] != blobs[name]:
            advice = f"delete {(source.folder / name).resolve()} and fetch it again with `hf download`"
            raise PlanError(f"{reference}: {name} is not the file that was fetched: its hash differs; {advice}")


def _hash_git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _resolve_hub(rest: str, layout: Layout, folders: tuple[Path, ...]) -> Source:
    """Return a model or data set of the hub's local cache; the digest is its commit. Nothing is downloaded."""
    name, _, revision = rest.partition("@")
    cache = find_hub_cache()
    for kind in ("models", "datasets"):
        repository = cache / f"{kind}--{name.replace('/', '--')}"
        pointer = repository / "refs" / (revision or "main")
        commit = revision if COMMIT.fullmatch(revision) else pointer.read_text().strip() if pointer.is_file() else None
        if commit is not None and (repository / "snapshots" / commit).is_dir():
            return Source(repository / "snapshots" / commit, commit)
    target = f"{name} --revision {revision}" if revision else name
    raise PlanError(
        f"hub:{rest} is not in the local cache; fetch it first: posttrain fetch RECIPE, "
        f"or hf download {target} (--repo-type dataset for data)"
    )


def find_hub_cache() -> Path:
    """Return the folder of the hub's local cache, by the variables that the hub's own client reads."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


@dataclass(frozen=True)
class Registered:
    """The artifact or source behind a version of a registered model."""

    name: str
    version: int
    key: str
    digest: str
    output: str
    source: str | None = None
    """What MLflow has for the source of a version that was never champion: it is set once, and tags can be changed."""
    alarms: tuple[str, ...] = ()
    """For the champion: differences between MLflow and the log."""


def resolve_registered_model(rest: str, layout: Layout) -> Registered:
    """Return the version that `name@alias` or `name@number` names (default: the champion). Raise PlanError.

    Present and earlier champions are resolved by the log. Other versions are read from MLflow; the caller compares them
    with the artifact that they name.
    """
    name, _, version = rest.partition("@")
    promoted = read_moves(layout).get(name, [])
    if version in ("", ALIAS) or not promoted:
        from lineage.registry.champions import read_standing  # signatures, for registered models only

        standing = read_standing(layout, name)
        promoted = standing.moves
        if version in ("", ALIAS):
            if standing.champion is None:
                why = standing.alarms[0] if standing.alarms else "there is no champion yet; see: posttrain champions"
                raise PlanError(f"mlflow:{rest}: no such model version: {why}")
            return _describe_moved(name, standing.moves[-1], tuple(standing.alarms))
    earlier = next((move for move in reversed(promoted) if str(move.version) == version), None)
    return _describe_moved(name, earlier) if earlier else _read_registered_version(name, version, rest, layout)


def _describe_moved(name: str, by: Move, alarms: tuple[str, ...] = ()) -> Registered:
    return Registered(name, by.version, by.key, by.digest, by.output, alarms=alarms)


def _read_registered_version(name: str, version: str, rest: str, layout: Layout) -> Registered:
    """Return a version that was never champion, as recorded in MLflow."""
    if is_registry_empty(layout):
        raise PlanError(f"mlflow:{rest}: no such model version: nothing was registered in this checkout yet")
    mlflow = open_client(layout)
    from mlflow.exceptions import MlflowException

    try:
        find = mlflow.get_model_version if version.isdigit() else mlflow.get_model_version_by_alias
        version_entity = find(name, version)
    except MlflowException as error:
        raise PlanError(f"mlflow:{rest}: no such model version: {error.message}") from error
    key, digest, output = (str(version_entity.tags.get(tag, "")) for tag in ("key", "digest", "output"))
    return Registered(name, int(version_entity.version), key, digest, output, source=str(version_entity.source))


def _resolve_mlflow(rest: str, layout: Layout, folders: tuple[Path, ...]) -> Source:
    """Return the artifact that a registered version, by alias or number, refers to."""
    registered = resolve_registered_model(rest, layout)
    if registered.alarms:
        first, *others = registered.alarms
        more = f" and {len(others)} more" if others else ""
        raise PlanError(
            f"mlflow:{rest}: MLflow's registry differs from the audit log: {first}{more}. See: "
            f"posttrain champions {registered.name}; put it right: posttrain champions {registered.name} --restore"
        )
    store = Store(layout)
    manifest = store.with_key(registered.key)
    if manifest is None:
        raise PlanError(
            f"mlflow:{rest}: its artifact {registered.key[:16] or '?'} is not in this checkout; run `dvc pull`"
        )
    output = manifest.outputs.get(registered.output)
    is_of_source = output is not None and registered.source in (None, dvc_uri(output.dvc))
    if output is None or output.digest != registered.digest or not is_of_source:
        raise PlanError(
            f"mlflow:{rest} refers to digest {registered.digest[:16]!r}, output {registered.output!r} of "
            f"{manifest.step} ({registered.key[:12]}), but the artifact here or the source of the version differs; "
            "name the step or key"
        )
    if not (state := store.examine(manifest.kind, manifest.key)).is_complete:
        raise PlanError(
            f"mlflow:{rest}: its artifact {registered.key[:16]} is damaged: {state.text}; fetch it: posttrain pull"
        )
    folder = store.output_folder(manifest.kind, manifest.key, registered.output)
    return Source(folder, output.digest, manifest.step, registered.key, registered.output)


CALLED = {"hub": "commit", "path": "digest", "mlflow": "digest"}
"""Name of a source's digest, by its scheme."""


def pin_source(reference: str, digest: str, layout: Layout, folders: tuple[Path, ...]) -> dict[str, str]:
    """Return the identity of a source: commit or content digest, DVC's md5 if tracked, its version in MLflow.

    Raise PlanError if a registered model does not exist any more.
    """
    scheme, _, rest = reference.partition(":")
    identity = {CALLED[scheme]: digest}
    if scheme == "path" and (tracked := _read_dvc_md5(rest, folders)):
        identity["dvc"] = tracked
    if scheme == "mlflow":
        identity["version"] = str(resolve_registered_model(rest, layout).version)
    return identity


def _read_dvc_md5(rest: str, folders: tuple[Path, ...]) -> str | None:
    """Return the md5 in the `.dvc` file beside a folder, if there is one."""
    candidates = (base / Path(rest).expanduser() for base in folders)
    place = next((path.resolve() for path in candidates if path.exists()), None)
    file = place.with_name(f"{place.name}.dvc") if place else None
    if file is None or not file.is_file():
        return None
    outs = (yaml.safe_load(file.read_text()) or {}).get("outs") or [{}]
    return outs[0].get("md5")
