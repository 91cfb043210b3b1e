"""Sources that a schedule watches for changes: files, DVC-tracked data, MLflow datasets and aliases."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from lineage.digests import content_digest, digest_file, digest_of, folder_digests
from lineage.layout import Layout
from lineage.registry.champions import find_champion
from lineage.registry.client import is_registry_empty, open_client, registry_uri, tracking_uri
from lineage.registry.registered import ALIAS

SQLITE = "sqlite:///"


def stat_source(source: str, layout: Layout, folders: Iterable[Path]) -> str | None:
    """Return a digest of sizes and times of the files behind a source, or None for a server of MLflow."""
    scheme, _, rest = source.partition(":")
    if scheme == "path":
        place = _find_place(rest, folders)
        return digest_of([_stat_file(path) for path in _list_files(place)] if place else [])
    if scheme == "dvc":
        place = _find_tracked(rest, folders)
        return digest_of([_stat_file(path) for path in _list_dvc_records(place)] if place else [])
    uri = tracking_uri(layout) if scheme == "mlflow-dataset" else registry_uri(layout)
    if not uri.startswith(SQLITE):
        return None
    file = uri.removeprefix(SQLITE)
    return digest_of([_stat_file(Path(file)), _stat_file(Path(f"{file}-wal"))])


def digest_source(source: str, layout: Layout, folders: Iterable[Path]) -> str | None:
    """Return the digest of a source's content: of the bytes, DVC's md5, the dataset's digest, or the version.

    None while it is not there.
    """
    scheme, _, rest = source.partition(":")
    if scheme == "path":
        place = _find_place(rest, folders)
        if place is None:
            return None
        return content_digest(folder_digests(place)) if place.is_dir() else digest_file(place, place.name).sha256
    if scheme == "dvc":
        place = _find_tracked(rest, folders)
        return None if place is None else _read_dvc_digest(place, layout)
    if is_registry_empty(layout):
        return None
    return _read_dataset_digest(rest, layout) if scheme == "mlflow-dataset" else _read_version(rest, layout)


def _find_place(path: str, folders: Iterable[Path]) -> Path | None:
    places = (folder / Path(path).expanduser() for folder in folders)
    return next((place.resolve() for place in places if place.exists()), None)


def _list_files(place: Path) -> Iterator[Path]:
    yield place
    if place.is_dir():
        yield from sorted(place.rglob("*"))


def _stat_file(path: Path) -> list[str | int]:
    try:
        status = path.stat()
    except OSError:
        return [str(path)]
    if path.is_dir():  # its time changes with whatever comes and goes in it, also for a moment
        return [str(path)]
    # Both times: copies may keep the one, and nothing can set the other.
    return [str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _find_tracked(path: str, folders: Iterable[Path]) -> Path | None:
    """Return the path of DVC-tracked data, which need not be checked out."""
    for folder in folders:
        place = (folder / path.removesuffix(".dvc")).absolute()
        if _find_dvc_root(place) and any(record.is_file() for record in _list_dvc_records(place)):
            return place
    return None


def _find_dvc_root(place: Path) -> Path | None:
    """Return the DVC repository around a place."""
    return next((above for above in place.parents if (above / ".dvc").is_dir()), None)


def _list_dvc_records(place: Path) -> list[Path]:
    """Return the files in which DVC may track a path: its own `.dvc`, those of the folders above, locks."""
    above = [place, *place.parents]
    return [p.with_name(f"{p.name}.dvc") for p in above if p.name] + [p / "dvc.lock" for p in above[1:]]


def _read_dvc_digest(place: Path, layout: Layout) -> str | None:
    """Return DVC's md5 of a file or folder by its records, whether or not it is checked out."""
    from dvc.api import DVCFileSystem

    root = _find_dvc_root(place)
    if root is None:
        return None
    config = {"core": {"site_cache_dir": str(layout.make_state() / "dvc")}}
    try:
        entry = DVCFileSystem(str(root), config=config).info(place.relative_to(root).as_posix())
    except FileNotFoundError:
        return None
    return entry.get("dvc_info", {}).get("md5")


def _read_dataset_digest(name: str, layout: Layout) -> str | None:
    """Return the digest of the dataset that the latest run with an input of that name read."""
    mlflow = open_client(layout)
    experiments = [e.experiment_id for e in mlflow.search_experiments()]
    quoted = name.replace("'", "")
    runs = mlflow.search_runs(experiments, f"datasets.name = '{quoted}'", max_results=1, order_by=["start_time DESC"])
    digests = [
        i.dataset.digest
        for run in runs
        for i in (run.inputs.dataset_inputs if run.inputs else ())
        if i.dataset.name == name
    ]
    return digests[0] if digests else None


def _read_version(rest: str, layout: Layout) -> str | None:
    """Return number and key of the version that an alias names; of the champion by the audit log."""
    name, _, alias = rest.partition("@")
    if alias == ALIAS:
        current = find_champion(layout, name)
        return f"version {current.version} {current.key[:16]}" if current else None
    mlflow = open_client(layout)
    from mlflow.exceptions import MlflowException

    try:
        model_version = mlflow.get_model_version_by_alias(name, alias)
    except MlflowException:
        return None
    return f"version {model_version.version} {model_version.tags.get('key', '')[:16]}".strip()
