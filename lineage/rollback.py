"""A champion taken back: the alias goes to a version that was champion before."""

from lineage.champions import Champion, Move, champion, history, move
from lineage.layout import Layout
from schemas.errors import PlanError


def rollback(layout: Layout, name: str, to: int | None = None, why: str = "") -> tuple[Champion, Champion]:
    """Move the champion back to the one before it, or to a version; returns from and to.

    Raises PlanError when there is no such champion, its artifact is gone or damaged, or the champion moves meanwhile.
    """
    now, moves = champion(layout, name), history(layout, name)
    if now is None:
        raise PlanError(f"{name} has no champion; champions: posttrain champions")
    earlier = [m for m in moves if m.version != now.version]
    if to is None:
        target = previous(moves, now.version)
    elif to == now.version:
        raise PlanError(f"version {to} of {name} is the champion already")
    else:
        target = next((m for m in reversed(earlier) if m.version == to), None)
    if target is None:
        were = ", ".join(str(v) for v in sorted({m.version for m in earlier}))
        what = f"version {to} of {name} was never champion" if to else f"{name} had no champion before this one"
        raise PlanError(f"{what}; champions before: {were or 'none'}")
    evidence = {"why": why} if why else {}
    return now, move(layout, name, target.key, evidence=evidence, output=target.output, expected=now, action="rollback")


def previous(moves: list[Move], version: int) -> Move | None:
    """The promotion before the one that made `version` champion; what was rolled back does not count."""
    standing: list[Move] = []
    for made in moves:
        if made.action == "rollback":
            while standing and standing[-1].version != made.version:
                standing.pop()
        if not standing or standing[-1].version != made.version:
            standing.append(made)
    while standing and standing[-1].version == version:
        standing.pop()
    return standing[-1] if standing else None
