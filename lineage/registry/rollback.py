"""Rollback of a champion to an earlier one, and restoring MLflow from the log."""

from lineage.audit import log as audit_log
from lineage.audit.moves import Move
from lineage.layout import Layout
from lineage.registry.champions import Champion, Standing, lock_champions, move_champion, read_standing
from lineage.registry.registered import ALIAS, find_foreign_tags, read_registered
from lineage.registry.writing import write_moves
from schemas.errors import PlanError


def roll_back(layout: Layout, name: str, to: int | None = None, why: str = "") -> tuple[Champion, Champion]:
    """Move the champion back to the one before it, or to a version; return the old and the new one.

    Differences in MLflow are corrected. Raise PlanError if there is no such champion, its artifact is missing or not
    the promoted one, or the champion moves meanwhile.
    """
    standing = read_standing(layout, name)
    current, moves = standing.champion, standing.moves
    if current is None:
        alarms = f": {standing.alarms[0]}" if standing.alarms else ""
        raise PlanError(f"{name} has no champion{alarms}; champions: posttrain champions")
    earlier = [m for m in moves if m.artifact != current.by.artifact]
    if to is None:
        target = find_previous(moves, current.by)
    elif to == current.version:
        raise PlanError(f"version {to} of {name} is the champion already")
    else:
        target = next((m for m in reversed(earlier) if m.version == to), None)
    if target is None:
        were = ", ".join(str(v) for v in sorted({m.version for m in earlier}))
        what = f"version {to} of {name} was never champion" if to else f"{name} had no champion before this one"
        raise PlanError(f"{what}; champions before: {were or 'none'}")
    after = move_champion(
        layout,
        name,
        target.key,
        evidence={"why": why} if why else {},
        output=target.output,
        expected=current,
        action="rollback",
        digest=target.digest,
    )
    return current, after


def find_previous(moves: list[Move], now: Move) -> Move | None:
    """Return the promotion before the one that made an artifact champion; rolled back ones do not count."""
    tops: list[Move] = []
    for made in moves:
        if made.action == "rollback":
            while tops and tops[-1].artifact != made.artifact:
                tops.pop()
        if not tops or tops[-1].artifact != made.artifact:
            tops.append(made)
    while tops and tops[-1].artifact == now.artifact:
        tops.pop()
    return tops[-1] if tops else None


def restore_registry(layout: Layout, name: str) -> list[str]:
    """Restore MLflow from the log and record that; return the differences, empty if there were none.

    Raise PlanError if the log does not verify, or the champion's version and its artifact are both missing.
    """
    standing = read_standing(layout, name)
    if not standing.alarms:
        return []
    if standing.champion is None:
        _remove_alias(layout, standing)
    elif not standing.is_unfinished or not _finish_latest_move(layout, standing):
        current = standing.champion
        move_champion(
            layout,
            name,
            current.key,
            evidence={},
            output=current.output,
            expected=current,
            action="restore",
            digest=current.digest,
        )
    return standing.alarms


def _finish_latest_move(layout: Layout, standing: Standing) -> bool:
    """Finish the latest move, which a kill interrupted; return whether nothing is left to restore."""
    with lock_champions(layout) as mlflow:
        write_moves(mlflow, read_registered(mlflow, standing.name), standing.moves, None)
    return not read_standing(layout, standing.name).alarms


def _remove_alias(layout: Layout, standing: Standing) -> None:
    """Remove an alias and tags that no known move explains."""
    audit_log.append(layout, "alias removed", model=standing.name, alarms=standing.alarms)
    with lock_champions(layout) as mlflow:
        for number, tag in list(find_foreign_tags(standing.registered, [])):
            mlflow.delete_model_version_tag(standing.name, str(number), tag)
        if standing.registered.alias is not None:
            mlflow.delete_registered_model_alias(standing.name, ALIAS)
