"""Resolves the model to serve: a champion, a step, a key, a folder, an outside source."""

from dataclasses import dataclass, replace
from pathlib import Path

from flows.champions.promotion import find_artifact
from learning.models.model_files import find_policy_problem
from lineage.artifacts.artifact_check import check_artifact
from lineage.artifacts.store import Store
from lineage.audit.moves import Move
from lineage.layout import Layout
from lineage.registry.champions import load_promoted_artifact, read_standing
from lineage.registry.registered import ALIAS
from lineage.sources.adapter_base import lacks_base
from lineage.sources.resolve import complete_adapter, find_source
from schemas.errors import PlanError
from schemas.references import POLICY_TYPES

FILES = ("config.json", "adapter_config.json")


@dataclass(frozen=True)
class Chosen:
    """A model that can be loaded."""

    name: str
    """Name that clients use for the model."""
    folder: Path
    digest: str
    """Content digest, or the hub's commit; empty for a folder."""
    description: str
    """Description for messages."""
    alias: str | None = None
    """Registered model of which it is the champion; None for other models."""
    alarms: tuple[str, ...] = ()
    """Differences between MLflow and the audit log about that registered model."""
    key: str | None = None
    """Key of the step of this checkout that made it; None for models from outside."""
    files: tuple[tuple[str, ...], ...] = ()
    """State of the files (`files_of`) when their content was verified; empty if it cannot be verified."""


def files_of(folder: Path) -> tuple[tuple[str, ...], ...]:
    """Return path, inode, size and both times of every file; a rewritten file differs in at least one."""
    stamps = ((path, path.stat()) for path in sorted(folder.rglob("*")))
    return tuple((str(p), f"{s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}") for p, s in stamps)


def choose(word: str, layout: Layout, name: str | None = None) -> Chosen:
    """Return the model that a word refers to; `name` is its name for clients. Raise PlanError or UnknownTarget."""
    scheme, colon, rest = word.partition(":")
    folder = Path(word).expanduser()
    if colon and scheme == "mlflow":
        chosen = _registered(rest, layout)
    elif colon and scheme in ("path", "hub"):
        source = find_source(word, layout, (Path.cwd(), layout.root))
        if problem := find_policy_problem(source.folder):
            raise PlanError(f"{word}: {problem}")
        chosen = Chosen(rest.rstrip("/").rpartition("/")[2] or rest, source.folder, source.digest, word)
    elif (folder.suffix == ".gguf" and folder.is_file()) or lacks_base(folder):
        chosen = choose(f"path:{folder.absolute()}", layout)
    elif any((folder / file).is_file() for file in FILES):
        chosen = Chosen(folder.resolve().name, folder.resolve(), "", str(folder))
    else:
        chosen = _made(word, layout)
    return chosen if name is None else replace(chosen, name=name)


def _registered(rest: str, layout: Layout) -> Chosen:
    """Return a promoted version of a registered model by the audit log, by default the champion.

    MLflow is only compared with the log.
    """
    name, _, version = rest.partition("@")
    here = read_standing(layout, name)
    if version in ("", ALIAS):
        if here.champion is None:
            why = f"the audit log has none: {here.alarms[0]}" if here.alarms else "there is no champion yet"
            raise PlanError(f"mlflow:{name}@{ALIAS}: {why}; see: posttrain champions")
        return _promoted(layout, name, here.champion.by, ALIAS, tuple(here.alarms))
    was = next((move for move in reversed(here.moves) if str(move.version) == version), None)
    if was is None:
        raise PlanError(f"mlflow:{rest} was never champion, so its content cannot be verified; serve a step or a key")
    return _promoted(layout, name, was, version, ())


def _promoted(layout: Layout, name: str, by: Move, version: str, alarms: tuple[str, ...]) -> Chosen:
    """Return the artifact that a move made champion, with every byte verified."""
    store = Store(layout)
    manifest = store.with_key(by.key)
    if manifest is None:
        raise PlanError(f"mlflow:{name}@{version}: version {by.version} ({by.key[:16]}) is not in this checkout")
    folder = complete_adapter(store.output_folder(manifest.kind, by.key, by.output), layout)
    files = files_of(folder)
    load_promoted_artifact(layout, by)
    number = f", version {by.version}" if version == ALIAS else ""
    description = f"mlflow:{name}@{version}{number}: {manifest.recipe}.{manifest.step} ({by.key[:12]})"
    alias = name if version == ALIAS else None
    return Chosen(name, folder, by.digest, description, alias, alarms, key=by.key, files=files)


def _made(word: str, layout: Layout) -> Chosen:
    """Return a model that a step made."""
    manifest = find_artifact(layout, word)
    output = next((name for name, output in manifest.outputs.items() if output.type in POLICY_TYPES), None)
    if output is None:
        kinds = ", ".join(output.type for output in manifest.outputs.values())
        raise PlanError(f"{manifest.step} ({manifest.key[:12]}) makes {kinds}; a policy or an adapter can be served")
    folder = complete_adapter(Store(layout).output_folder(manifest.kind, manifest.key, output), layout)
    files = files_of(folder)
    check_artifact(layout, manifest)
    description = f"{manifest.recipe}.{manifest.step} ({manifest.key[:12]})"
    digest = manifest.outputs[output].digest
    return Chosen(manifest.step, folder, digest, description, key=manifest.key, files=files)
