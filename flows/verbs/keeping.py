"""Keep what is worth it: clear away the rest, and share artifacts through a DVC remote."""

from typing import Annotated

import typer

from flows.verbs.options import AsJson, console
from schemas.errors import PlanError


def gc(
    last: Annotated[int, typer.Option(min=0, help="Keep what the latest runs used.")] = 10,
    keep: Annotated[
        int, typer.Option(min=0, metavar="K", help="Keep the best K artifacts by a metric, with their runs.")
    ] = 0,
    by: Annotated[str, typer.Option(metavar="METRIC", help="That metric: accuracy, accuracy.MODEL, ...")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without, it is only said.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what could be removed and what the disk gets back; nothing promoted or pinned, and no ancestor of it."""
    if bool(keep) != bool(by):
        raise PlanError("--keep and --by go together: posttrain gc --keep 3 --by accuracy")
    from flows.keeping import Policy, clear_away
    from lineage.layout import Layout

    clear_away(Layout.find(), Policy(last, keep, by), console, yes=yes, as_json=as_json)


def pin(
    target: Annotated[
        str | None, typer.Argument(help="A step, key, digest, run or artifact folder; default: list.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Keep it no longer than others.")] = False,
) -> None:
    """Keep an artifact, and all it was made from, from being cleared away; without a target, list what is pinned."""
    from flows.keeping import pin_target
    from lineage.layout import Layout

    pin_target(Layout.find(), target, console, remove=remove)
