"""Champions: the signed moves of a registered model, and MLflow's alias `champion`, which follows them.

A version of the registered model NAME is a reference to an artifact, by its tags `key`, `digest` and `output`. Every
move is an entry of the audit log, which is authoritative. MLflow has a copy: a tag of the version that the alias moved
to.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from lineage.artifacts.artifact_check import check_artifact
from lineage.artifacts.store import Store
from lineage.audit import log as audit_log
from lineage.audit.chain import read_chain, read_unbroken_chain
from lineage.audit.moves import OTHERS, Action, Move, collect_moves, read_moves
from lineage.keys import load_trusted_keys
from lineage.layout import Layout
from lineage.registry.client import hide_credentials, is_registry_empty, open_client, registry_uri
from lineage.registry.registered import (
    ALIAS,
    Registered,
    compare_registered,
    fetch_all_pages,
    printable,
    read_registered,
)
from lineage.registry.writing import write_moves, write_version
from schemas.base import JsonObject
from schemas.errors import PlanError
from schemas.manifest import Manifest
from schemas.references import MODEL_TYPES

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class Champion:
    """The model that the latest move promoted."""

    name: str
    version: int
    key: str
    digest: str
    output: str
    """Named output of the step."""
    folder: Path | None
    """The model's folder; None if the artifact is not in this checkout, or has another digest."""
    since: str
    """UTC, ISO 8601."""
    by: Move
    """The move that made it champion."""


@dataclass(frozen=True)
class Standing:
    """The state of a registered model."""

    name: str
    champion: Champion | None
    """Champion by the known moves; None without moves."""
    moves: list[Move]
    """Moves of the log, and those that other checkouts signed, oldest first."""
    alarms: list[str]
    """One line per difference between MLflow and the known moves."""
    is_unfinished: bool
    """Whether the only difference is that a kill interrupted the latest move."""
    others: list[Move]
    """Moves of other checkouts that are not in the log yet."""
    registered: Registered


class Moved(PlanError):
    """The champion is no longer the one that a move was to replace."""


def read_standing(layout: Layout, name: str) -> Standing:
    """Return champion, moves and alarms of a registered model.

    Raise PlanError if the audit log does not verify or MLflow does not answer.
    """
    if is_registry_empty(layout) and name not in read_moves(layout):
        return Standing(name, None, [], [], False, [], Registered(name, None, {}))
    with connect_registry(layout) as mlflow:
        return _compare_standing(layout, mlflow, name)


def find_champion(layout: Layout, name: str) -> Champion | None:
    """Return the champion of a registered model, or None. Raise PlanError as `read_standing` does."""
    return read_standing(layout, name).champion


def read_standings(layout: Layout) -> list[Standing]:
    """Return every standing with a champion, or with such an alias in MLflow, by name. Raise PlanError."""
    moves = read_moves(layout)
    if is_registry_empty(layout) and not moves:
        return []
    with connect_registry(layout) as mlflow:
        aliased = {model.name for model in fetch_all_pages(mlflow.search_registered_models) if ALIAS in model.aliases}
        return [_read_standing_or_alarm(layout, mlflow, name, name in moves) for name in sorted({*moves, *aliased})]


def check_registry(layout: Layout) -> list[str]:
    """Return a line for each difference between MLflow's registry and the promotions in the log.

    A log that does not verify is reported elsewhere; the registry is then not compared with it.
    """
    if read_chain(layout).problem:
        return []
    try:
        standings = read_standings(layout)
    except PlanError as error:
        return [str(error)]
    return [alarm for each in standings for alarm in each.alarms]


def move_champion(
    layout: Layout,
    name: str,
    key: str,
    *,
    evidence: JsonObject,
    output: str | None = None,
    expected: Champion | None,
    action: Action = "promote",
    digest: str | None = None,
) -> Champion:
    """Make the artifact of a key champion unless it is; of two concurrent moves from `expected`, one succeeds.

    `evidence` is stored with the move. Raise Moved if the champion is not `expected` any more. Raise PlanError if the
    artifact is missing, is no model, does not verify or does not have `digest`, if MLflow does not answer, or if MLflow
    differs from the log; in that last case `rollback` and `restore` proceed, and correct MLflow.
    """
    manifest, output = _verify_model(layout, key, output, digest)
    with lock_champions(layout) as mlflow:
        standing = _compare_standing(layout, mlflow, name)
        current = standing.champion
        if standing.is_unfinished:
            write_moves(
                mlflow, standing.registered, standing.moves, manifest if current and current.key == key else None
            )
            standing = _compare_standing(layout, mlflow, name)
        if standing.alarms and action == "promote":
            raise PlanError(describe_disagreement(standing))
        digest = manifest.outputs[output].digest
        if current and (current.key, current.digest, current.output) == (key, digest, output) and action == "promote":
            return current
        if (current.by.entry["hash"] if current else None) != (expected.by.entry["hash"] if expected else None):
            raise Moved(_describe_conflict(name, expected, current))
        for other in standing.others:
            audit_log.append(layout, OTHERS, model=name, entry=audit_log.encode_entry(other.entry))
        version = write_version(mlflow, standing.registered, standing.moves, manifest, output)
        repaired = {"alarms": standing.alarms} if standing.alarms else {}
        # The log first, so that it knows every champion. If a kill interrupts the update of MLflow, the next move
        # completes it.
        audit_log.append(
            layout,
            action,
            model=name,
            number=standing.moves[-1].number + 1 if standing.moves else 1,
            version=version,
            before=current.version if current else None,
            key=key,
            digest=digest,
            output=output,
            evidence=evidence | repaired,
            after=standing.moves[-1].entry["hash"] if standing.moves else None,
            log=read_unbroken_chain(layout).name,
        )
        moves = read_moves(layout)[name]
        write_moves(mlflow, read_registered(mlflow, name), moves, manifest)
        return _make_champion(layout, name, moves[-1])


@contextmanager
def lock_champions(layout: Layout) -> "Iterator[MlflowClient]":
    """Lock the champions of this checkout and return MLflow's client."""
    layout.make_state()
    with FileLock(layout.state / "champions.lock"), connect_registry(layout) as mlflow:
        yield mlflow


def describe_disagreement(standing: Standing) -> str:
    """Return how MLflow and the log differ, and what to do."""
    more = f" and {len(standing.alarms) - 1} more" if len(standing.alarms) > 1 else ""
    return (
        f"MLflow's registry is not what the audit log made it: {standing.alarms[0]}{more}. See: posttrain champions "
        f"{standing.name}; write MLflow again from the log: posttrain champions {standing.name} --restore"
    )


def _compare_standing(layout: Layout, mlflow: "MlflowClient", name: str) -> Standing:
    chain, keys = read_unbroken_chain(layout), load_trusted_keys(layout)
    registered, moves = read_registered(mlflow, name), collect_moves(chain, keys).get(name, [])
    store = Store(layout)
    compared = compare_registered(registered, moves, chain, keys, lambda move: store.with_key(move.key))
    current = _make_champion(layout, name, compared.moves[-1]) if compared.moves else None
    return Standing(name, current, compared.moves, compared.alarms, compared.is_unfinished, compared.others, registered)


def _read_standing_or_alarm(layout: Layout, mlflow: "MlflowClient", name: str, is_known: bool) -> Standing:
    """Return a standing; a name that the log lacks and MLflow cannot search for becomes an alarm."""
    from mlflow.exceptions import MlflowException

    try:
        return _compare_standing(layout, mlflow, name)
    except MlflowException as error:
        if is_known:
            raise
        alarm = printable(f"{name!r} has an alias {ALIAS} that no known move explains, and cannot be read: {error}")
        return Standing(name, None, [], [alarm], False, [], Registered(name, None, {}))


def _make_champion(layout: Layout, name: str, by: Move) -> Champion:
    manifest = Store(layout).with_key(by.key)
    is_here = manifest is not None and by.output in manifest.outputs
    folder = None
    if manifest is not None and is_here and manifest.outputs[by.output].digest == by.digest:
        folder = Store(layout).output_folder(manifest.kind, by.key, by.output)
    return Champion(name, by.version, by.key, by.digest, by.output, folder, by.when, by)


def load_promoted_artifact(layout: Layout, by: Move) -> Manifest:
    """Return the artifact that a move made champion, every byte compared with the promoted one.

    Raise PlanError if it is not in this checkout, or differs from the promoted one.
    """
    return _verify_model(layout, by.key, by.output, by.digest)[0]


def _verify_model(layout: Layout, key: str, output: str | None, digest: str | None) -> tuple[Manifest, str]:
    """Verify the artifact of a key; return it and the name of its model output."""
    manifest = Store(layout).with_key(key)
    if manifest is None:
        raise PlanError(f"the artifact {key[:16]} is not in this checkout (any more): fetch it, or make it again")
    output = output or next((n for n, o in manifest.outputs.items() if o.type in MODEL_TYPES), None)
    if output is None or output not in manifest.outputs or manifest.outputs[output].type not in MODEL_TYPES:
        raise PlanError(f"{manifest.step} ({key[:16]}) is not a model: a champion must be {', '.join(MODEL_TYPES)}")
    if digest is not None and manifest.outputs[output].digest != digest:
        digest_here = manifest.outputs[output].digest[:16]
        raise PlanError(
            f"{manifest.step} ({key[:16]}) has digest {digest_here}, and not {digest[:16]}, which was promoted"
        )
    check_artifact(layout, manifest)
    return manifest, output


def _describe_conflict(name: str, expected: Champion | None, now: Champion | None) -> str:
    was = f"version {expected.version}" if expected else "none"
    by = f", since {now.since} by {now.by.who}" if now else ""
    return f"the champion of {name} was {was} and is now {f'version {now.version}' if now else 'none'}{by}"


@contextmanager
def connect_registry(layout: Layout) -> "Iterator[MlflowClient]":
    """Return MLflow's client; its errors become a PlanError that names the address and no password."""
    mlflow = open_client(layout)
    try:
        yield mlflow
    except PlanError:
        raise
    except Exception as error:
        from mlflow.exceptions import MlflowException

        if not isinstance(error, MlflowException) and type(error).__module__.partition(".")[0] != "sqlalchemy":
            raise
        message = str(error).splitlines()[0][:300] if isinstance(error, MlflowException) else type(error).__name__
        raise PlanError(f"MLflow's registry at {hide_credentials(registry_uri(layout))}: {message}") from error
