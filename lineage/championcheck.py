"""Whether the models that the audit log made champions are here, with the evaluations that proved them."""

from collections.abc import Iterator

from lineage.auditclaims import AuditCheck
from lineage.layout import Layout
from lineage.moves import Move, recorded_moves
from lineage.state_files import is_folder
from schemas.errors import PlanError


def champion_problems(layout: Layout, found: AuditCheck) -> list[str]:
    """One line per artifact that a champion, now or before, needs and that is gone.

    Of earlier champions those count that no entry of the log removed; of the current ones all.
    """
    try:
        moves = recorded_moves(layout)
    except PlanError as error:
        return [] if found.problems else [str(error)]
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
