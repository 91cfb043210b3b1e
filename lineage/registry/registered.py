"""A registered model in MLflow, compared with the moves in the log.

Anyone with access to MLflow's server may have written the data read here, so it is only compared, never trusted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lineage.audit.chain import Chain, find_signature_problem
from lineage.audit.log import Entry, parse_entry
from lineage.audit.moves import Move, insertion_index, log_name, parse_move, registered_model_name
from lineage.keys import Ed25519PublicKey
from lineage.registry.client import dvc_uri
from schemas.manifest import Manifest

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

ALIAS = "champion"
MOVE = "posttrain.move."
"""Beginning of the tags that hold moves, before their number."""


@dataclass(frozen=True)
class Registered:
    """A registered model as recorded in MLflow."""

    name: str
    alias: int | None
    """Version that the alias names; None without an alias, or without the model."""
    versions: dict[int, "ModelVersion"]


@dataclass(frozen=True)
class Compared:
    """The moves of a registered model, and the differences in MLflow."""

    moves: list[Move]
    """Moves of the log, and those that other checkouts signed, oldest first."""
    others: list[Move]
    """Moves of other checkouts that are not in this log yet."""
    alarms: list[str]
    """One line per entry in MLflow that no known move explains, or that differs from the moves."""
    is_unfinished: bool
    """Whether the only difference is the latest move, which a kill interrupted between the log and MLflow."""


def read_registered(mlflow: "MlflowClient", name: str) -> Registered:
    """Return alias and versions of a registered model; no versions if there is no such model."""
    from mlflow.exceptions import MlflowException

    try:
        aliases = mlflow.get_registered_model(name).aliases
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return Registered(name, None, {})
        raise
    quote = '"' if "'" in name else "'"
    versions = {
        int(v.version): v for v in fetch_all_pages(mlflow.search_model_versions, f"name = {quote}{name}{quote}")
    }
    return Registered(name, int(aliases[ALIAS]) if ALIAS in aliases else None, versions)


def compare_registered(
    registered: Registered,
    logged_moves: list[Move],
    chain: Chain,
    keys: dict[str, Ed25519PublicKey],
    made: Callable[[Move], Manifest | None],
) -> Compared:
    """Compare a registered model with the moves of the log; `made` returns a promoted artifact, if it is here."""
    moves, others, alarms = _merge_other_moves(registered, logged_moves, chain, keys)
    tip = moves[-1] if moves else None
    tags = list(_check_tags(registered, moves))
    content = list(_check_versions(registered, moves, made(tip) if tip else None))
    place = _check_alias(registered, tip)
    own_tag_only = tags == [] or (tip is not None and tags == [_describe_missing_tag(registered, tip)])
    was_there = tip is not None and registered.alias in (tip.before, tip.version)
    cut_off = bool(tags) and own_tag_only and was_there and not (alarms or content)
    all_alarms = [*([place] if place else []), *content, *tags, *alarms]
    return Compared(moves, others, [printable(line) for line in all_alarms], cut_off)


def printable(text: str) -> str:
    """Return a line without control characters, as names and tags are not trusted."""
    return "".join(c if c.isprintable() else "?" for c in text)[:500]


def tag_name(move: Move) -> str:
    """Return the name of the tag for a move."""
    return f"{MOVE}{move.number:06d}"


def find_foreign_tags(registered: Registered, moves: list[Move]) -> Iterator[tuple[int, str]]:
    """Yield version and name of every tag that has the name of a move but contains none of these moves."""
    places = {(move.version, tag_name(move)): move.entry["hash"] for move in moves}
    for number, version in registered.versions.items():
        for tag, text in version.tags.items():
            entry = parse_entry(text.encode(errors="replace")) if tag.startswith(MOVE) else None
            if tag.startswith(MOVE) and (entry is None or places.get((number, tag)) != entry["hash"]):
                yield number, tag


def fetch_all_pages(search: Any, *condition: str) -> list[Any]:
    """Return everything that a search of MLflow returns, over all its pages."""
    results = list(page := search(*condition))
    while page.token:
        page = search(*condition, page_token=page.token)
        results += page
    return results


def _merge_other_moves(
    registered: Registered, logged_moves: list[Move], chain: Chain, keys: dict[str, Ed25519PublicKey]
) -> tuple[list[Move], list[Move], list[str]]:
    """Return all moves, those that only MLflow had and a trusted key signed, and alarms about the others."""
    moves, others, alarms = list(logged_moves), [], []
    hashes = {move.entry["hash"] for move in logged_moves}
    strange: list[tuple[Move, str]] = []
    for number, version in sorted(registered.versions.items()):
        for tag, text in sorted(version.tags.items()):
            if not tag.startswith(MOVE):
                continue
            where = f"mlflow:{registered.name}@{number}: tag {tag}"
            entry = parse_entry(text.encode(errors="replace"))
            move, what = _parse_signed_move(entry, keys, registered.name, number, tag)
            if move is None:
                alarms.append(f"{where} {what}")
            elif move.entry["hash"] not in hashes:
                strange.append((move, where))
    for move, where in sorted(strange, key=lambda each: (each[0].number, each[0].when)):
        if log_name(move.entry) == chain.name:
            alarms.append(f"{where} is a move that this checkout signed and its audit log does not hold any more")
        elif (move.after in hashes) if hashes else move.after is None:
            moves.insert(insertion_index(moves, move), move)
            others.append(move)
            hashes.add(move.entry["hash"])
        else:
            alarms.append(f"{where} follows a move that is not known here")
    return moves, others, alarms


def _parse_signed_move(
    entry: Entry | None, keys: dict[str, Ed25519PublicKey], name: str, number: int, tag: str
) -> tuple[Move | None, str]:
    """Return the signed move in a tag, or the reason why it is not one."""
    if entry is None:
        return None, "is no signed move"
    if problem := find_signature_problem(entry, keys):
        return None, f"holds a move that {problem}"
    move = parse_move(entry)
    if move is None or (registered_model_name(entry), move.version, tag_name(move)) != (name, number, tag):
        return None, "holds a move that was signed for another place"
    return move, ""


def _check_alias(registered: Registered, tip: Move | None) -> str | None:
    position = "is gone" if registered.alias is None else f"stands at version {registered.alias}"
    if tip is None:
        return (
            f"mlflow:{registered.name}@{ALIAS} {position}, but no move is known that made it champion"
            if registered.alias
            else None
        )
    if registered.alias == tip.version:
        return None
    champion = f"version {tip.version} ({tip.key[:12]})"
    return f"mlflow:{registered.name}@{ALIAS} {position}; by the audit log {champion} is champion"


def _check_versions(registered: Registered, moves: list[Move], manifest: Manifest | None) -> Iterator[str]:
    """Yield versions that refer to another artifact than was promoted as them."""
    latest = {move.version: move for move in moves}
    for number, move in latest.items():
        version = registered.versions.get(number)
        if version is None:
            if move is moves[-1]:
                yield f"mlflow:{registered.name}@{number} is gone; by the audit log it is champion"
            continue
        for tag, expected in (("key", move.key), ("digest", move.digest), ("output", move.output)):
            if version.tags.get(tag) != expected:
                value = str(version.tags.get(tag))[:16]
                where = f"mlflow:{registered.name}@{number}: tag {tag}"
                yield f"{where} is {value!r}; by the audit log it is {expected[:16]!r}"
        if move is not moves[-1] or manifest is None or move.output not in manifest.outputs:
            continue
        if version.source != version_source(manifest, move.output):
            source = str(version.source)[:80]
            yield f"mlflow:{registered.name}@{number}: its source is {source!r}, not that of {move.key[:12]}"


def version_source(manifest: Manifest, output: str) -> str:
    """Return the source of a version in MLflow."""
    return dvc_uri(manifest.outputs[output].dvc)


def _check_tags(registered: Registered, moves: list[Move]) -> Iterator[str]:
    for move in moves:
        version = registered.versions.get(move.version)
        if version is not None and tag_name(move) not in version.tags:
            yield _describe_missing_tag(registered, move)


def _describe_missing_tag(registered: Registered, move: Move) -> str:
    return f"mlflow:{registered.name}@{move.version}: tag {tag_name(move)} of a move that the audit log knows is gone"
