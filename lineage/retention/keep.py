"""Which artifacts must stay, and why: promoted, pinned, best or recent ones, with all ancestors."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lineage.artifacts.completeness import read_sealed_manifest
from lineage.artifacts.signature import check_signature, read_signer_name
from lineage.audit.claims import AuditCheck
from lineage.audit.moves import Move, read_moves
from lineage.keys import load_trusted_keys
from lineage.layout import Layout
from lineage.records import Record
from lineage.registry.champions import read_standings
from lineage.registry.client import hide_credentials, is_registry_empty, open_client, registry_uri
from lineage.registry.rollback import find_previous
from lineage.retention.pins import read_pins
from schemas.errors import PlanError

if TYPE_CHECKING:
    from mlflow import MlflowClient

Reasons = dict[str, str]
"""Key to why the artifact stays."""


def find_promoted(layout: Layout, earlier: int | None = None) -> Reasons:
    """Return what champions, rollbacks and aliases need, with the evaluations that proved them.

    The audit log says which these are, whatever became of MLflow's copy; `earlier` bounds how many models before each
    champion stay (None: all), those first that `rollback` would go to. Raise PlanError if the log does not hold or
    the registry cannot be asked: then nothing may be removed.
    """
    moves = read_moves(layout)
    aliases: list[tuple[str, str, str]] = []
    if not is_registry_empty(layout):
        try:
            for standing in read_standings(layout):  # with the moves that other checkouts signed
                moves[standing.name] = standing.moves or moves.get(standing.name, [])
            aliases = list(_read_aliases(open_client(layout)))
        except Exception as error:  # drivers of databases and servers raise what they like
            raise PlanError(
                f"MLflow's registry at {hide_credentials(registry_uri(layout))} cannot be asked, so nothing is "
                f"removed: {error}"
            ) from error
    found_keys: Reasons = {}
    for name, made in sorted(moves.items()):
        for key, why in _find_needed(name, made, earlier):
            found_keys.setdefault(key, why)
    for name, alias, key in aliases:
        found_keys.setdefault(key, f"{name}@{alias}")
    return found_keys


def _find_needed(name: str, moves: list[Move], earlier: int | None) -> Iterator[tuple[str, str]]:
    """Yield key and reason of each artifact that a champion, or a rollback from it, needs."""
    for place, move in enumerate(order_by_standing(moves)):
        if earlier is not None and place > earlier:
            return
        who = f"version {move.version} of {name}, for rollback" if place else f"champion of {name}"
        yield move.key, who
        for proof in (m.evidence.get("key") for m in moves if m.artifact == move.artifact):
            if proof:
                yield str(proof), f"proof of {who}"


def order_by_standing(moves: list[Move]) -> list[Move]:
    """Return the champion, then the targets of successive rollbacks, then rolled back ones, latest first.

    Each artifact once, by its latest move.
    """
    order: list[Move] = []
    going, now = list(moves), moves[-1] if moves else None
    while now is not None:
        order.append(now)
        going.append(replace(now, action="rollback"))
        now = find_previous(going, now)
    promoted = {move.artifact for move in order}
    for move in reversed(moves):
        if move.artifact not in promoted:
            promoted.add(move.artifact)
            order.append(move)
    return order


def _read_aliases(mlflow: "MlflowClient") -> Iterator[tuple[str, str, str]]:
    token = None
    while True:
        page = mlflow.search_registered_models(page_token=token)
        for model in page:
            for alias, version in model.aliases.items():
                key = mlflow.get_model_version(model.name, str(version)).tags.get("key")
                if key:
                    yield model.name, alias, key
        if not (token := page.token):
            return


def find_pinned(layout: Layout) -> Reasons:
    """Return the pinned artifacts."""
    return {key: f"pinned as {pin['word']}" for key, pin in read_pins(layout).items()}


def find_best(records: Iterable[Record], metric: str, count: int) -> Reasons:
    """Return the artifacts with the highest values of a metric. Raise PlanError if none has that metric."""
    valued = [(value, r) for r in records if (value := _as_number(r["metrics"].get(metric))) is not None]
    if not valued:
        metrics = sorted(
            {name for r in records for name, value in r["metrics"].items() if _as_number(value) is not None}
        )
        raise PlanError(f"no artifact has a metric `{metric}`; there are: {', '.join(metrics[:30]) or 'none'}")
    ranked = sorted(valued, key=lambda pair: (pair[0], pair[1]["started"]), reverse=True)
    return {r["key"]: f"{metric} {value:g}, number {n}" for n, (value, r) in enumerate(ranked[:count], 1)}


def add_ancestors(records: Iterable[Record], reasons: Reasons) -> Reasons:
    """Return the reasons with those of everything that the artifacts were made from."""
    by_key = {record["key"]: record for record in records}
    all_reasons: Reasons = {}
    waiting = [(key, why) for key, why in reversed(reasons.items())]
    while waiting:
        key, why = waiting.pop()
        if key in all_reasons:
            continue
        all_reasons[key] = why
        if key in by_key:
            above = [maker for input_record in by_key[key]["inputs"] if (maker := input_record.get("key"))]
            origin = why if why.startswith("made into ") else f"made into what is kept: {why}"
            waiting += [(other, origin) for other in above if other not in reasons]
            waiting += [(other, reasons[other]) for other in above if other in reasons]
    return all_reasons


def refuse_missing(log: AuditCheck, records: Iterable[Record], reasons: Reasons) -> None:
    """Raise PlanError if an artifact that must be kept is missing: its ancestors are then unknown.

    What an entry of the log removed, or this log never saw published, is not missed.
    """
    keys = {record["key"] for record in records}
    for key, why in reasons.items():
        entry = log.published.get(key)
        if key not in keys and entry is not None and log.removed.get(key, 0) < entry["number"]:
            raise PlanError(
                f"{entry['facts'].get('step')} ({key[:16]}; {why}) is missing or damaged, so what it was made from is "
                "unknown and nothing is removed; fetch it (posttrain pull) or make it again"
            )


def refuse_damaged(layout: Layout, log: AuditCheck, records: Iterable[Record]) -> None:
    """Raise PlanError if a manifest of what stays is not the published one: it may hide ancestors."""
    keys = load_trusted_keys(layout)
    for record in records:
        folder = Path(record["folder"])
        entry = log.published.get(record["key"])
        problems = [] if read_sealed_manifest(folder) else [f"{folder}: its manifest is not the one that was sealed"]
        if (
            read_signer_name(folder) in keys
        ):  # one of another key was pulled, and whether to believe it is asked elsewhere
            problems += check_signature(folder, keys)
        elif entry is not None and entry["facts"].get("signed_by") in keys:
            problems.append(f"{folder}: its signature is gone")
        if problems:
            raise PlanError(
                f"{problems[0]}, so what it was made from is unknown and nothing is removed; see: posttrain lineage "
                "--verify"
            )


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)
