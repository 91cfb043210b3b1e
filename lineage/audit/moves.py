"""Moves of champions in the signed audit log, of which MLflow's aliases and tags are a copy.

A move is an entry `promote`, `rollback` or `restore` of the log. MLflow holds the whole entry as a tag of the version
that the alias moved to, so a move of another checkout is accepted by its signature if that checkout's key is trusted.
`after` chains the moves of one model across logs; moves of other checkouts are copied to the own log when first seen.
"""

from dataclasses import asdict, dataclass, field
from typing import Literal, cast

from lineage.audit.chain import MOVES, Chain, find_signature_problem, read_unbroken_chain
from lineage.audit.log import Entry, describe_author, parse_entry
from lineage.keys import Ed25519PublicKey, load_trusted_keys
from lineage.layout import Layout
from schemas.base import JsonObject

Action = Literal["promote", "rollback", "restore"]
OTHERS = "move of another log"
"""Action of the entries that hold a move of another checkout."""


@dataclass(frozen=True)
class Move:
    """One move of a champion."""

    number: int
    """Counts from 1 over all versions of the registered model."""
    action: Action
    version: int
    """Version that the alias moved to."""
    before: int | None
    """Version that the alias moved from; None for the first move."""
    key: str
    """Key of the step that made the model."""
    digest: str
    """Content digest of the model."""
    output: str
    """Named output of that step."""
    when: str
    """UTC, ISO 8601."""
    who: str
    evidence: JsonObject
    """For a promotion, the gate that passed: its step, key and run, and its result."""
    after: str | None
    """Hash of the entry of the previous move, in any log; None for the first move."""
    entry: Entry = field(repr=False, compare=False)
    """The signed entry with these values."""

    @property
    def artifact(self) -> tuple[str, str, str]:
        """Key, digest and output name of the model."""
        return self.key, self.digest, self.output

    def plain(self) -> JsonObject:
        """Return the move as JSON, with the signature's key and the entry's hash in place of the entry."""
        values = asdict(self) | {"hash": self.entry["hash"], "signed_by": self.entry["signature"]["keyid"]}
        return {name: value for name, value in values.items() if name != "entry"}


def read_moves(layout: Layout) -> dict[str, list[Move]]:
    """Return the moves of every registered model in the log, oldest first.

    Raise PlanError if the log does not verify, as nothing may then be served, promoted or removed by it.
    """
    return collect_moves(read_unbroken_chain(layout), load_trusted_keys(layout))


def collect_moves(chain: Chain, keys: dict[str, Ed25519PublicKey]) -> dict[str, list[Move]]:
    """Return the moves in a log by registered model, in order."""
    moves_by_model: dict[str, list[Move]] = {}
    for entry in chain.entries:
        if entry["action"] in MOVES and (move := parse_move(entry)):
            moves_by_model.setdefault(registered_model_name(entry), []).append(move)
        elif (
            entry["action"] == OTHERS
            and (foreign := _parse_foreign_entry(entry, keys))
            and (move := parse_move(foreign))
        ):
            moves = moves_by_model.setdefault(registered_model_name(foreign), [])
            moves.insert(insertion_index(moves, move), move)
    return moves_by_model


def insertion_index(moves: list[Move], move: Move) -> int:
    """Return the index of another checkout's move: last, unless the last known one is later (both moved at once)."""
    is_later = not moves or (move.number, move.when) > (moves[-1].number, moves[-1].when)
    return len(moves) if is_later else len(moves) - 1


def parse_move(entry: Entry) -> Move | None:
    """Return the move that an entry describes, or None if it is not a valid one."""
    facts = entry["facts"] if isinstance(entry["facts"], dict) else {}
    numbers = facts.get("number"), facts.get("version"), facts.get("before") or 1
    texts = tuple(facts.get(name) for name in ("key", "digest", "output"))
    if entry["action"] not in MOVES or not all(isinstance(n, int) and n > 0 for n in numbers):
        return None
    if not all(isinstance(text, str) for text in texts) or not isinstance(facts.get("evidence"), dict):
        return None
    after = facts.get("after")
    return Move(
        number=facts["number"],
        action=cast(Action, entry["action"]),
        version=facts["version"],
        before=facts.get("before"),
        key=facts["key"],
        digest=facts["digest"],
        output=facts["output"],
        when=str(entry["at"])[:19] + "+00:00",
        who=describe_author(entry),
        evidence=facts["evidence"],
        after=None if after is None else str(after),
        entry=entry,
    )


def registered_model_name(entry: Entry) -> str:
    """Return the registered model of an entry."""
    return str(entry["facts"].get("model")) if isinstance(entry["facts"], dict) else ""


def log_name(entry: Entry) -> str | None:
    """Return the log that a move was written to, by the hash of its first entry, or None if the entry omits it."""
    name = entry["facts"].get("log") if isinstance(entry["facts"], dict) else None
    return str(name) if name else entry["hash"] if entry["number"] == 1 else None


def _parse_foreign_entry(entry: Entry, keys: dict[str, Ed25519PublicKey]) -> Entry | None:
    """Return the entry of another log inside an entry, if its key is trusted."""
    facts = entry["facts"] if isinstance(entry["facts"], dict) else {}
    foreign = parse_entry(str(facts.get("entry")).encode())
    return foreign if foreign is not None and find_signature_problem(foreign, keys) is None else None
