"""Whether the models that the audit log made champions are here, with the evaluations that proved them."""

from collections.abc import Iterator

from lineage.auditclaims import AuditCheck
from lineage.chain import Chain
from lineage.keys import Ed25519PublicKey
from lineage.layout import Layout
from lineage.moves import Move, moves_of
from lineage.state_files import is_folder


def champion_problems(layout: Layout, found: AuditCheck, keys: dict[str, Ed25519PublicKey]) -> list[str]:
    """One line per artifact that a champion, now or before, needs and that is gone.

    Of earlier champions those count that no entry of the log removed; of the current ones all. What the log says is
    believed entry by entry, also where others of its entries do not hold.
    """
    moves = moves_of(Chain(tuple(found.moves), None, frozenset(), None), keys)
    return [line for name in sorted(moves) for line in dict.fromkeys(_missing(layout, found, name, moves[name]))]


def _missing(layout: Layout, found: AuditCheck, name: str, moves: list[Move]) -> Iterator[str]:
    now = moves[-1].artifact
    for move in reversed(moves):
        is_now = move.artifact == now
        who = f"the champion of {name}, version {move.version}" if is_now else f"version {move.version} of {name}"
        yield from _gone(layout, found, move.key, who if is_now else f"{who}, champion before", is_now)
        if (evidence := move.evidence.get("key")) is not None:
            yield from _gone(layout, found, str(evidence), f"the evaluation that proved {who}", is_now)


def _gone(layout: Layout, found: AuditCheck, key: str, what: str, is_needed: bool) -> Iterator[str]:
    folders = layout.state.glob(f"artifacts/*-{key[:16]}") if key.isalnum() else ()
    if not any(map(is_folder, folders)) and (is_needed or key not in found.removed):
        yield f"{layout.state / 'artifacts'}: {what} ({key[:16]}), is missing; fetch it, or make it again"
