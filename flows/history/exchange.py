"""`posttrain push` and `pull`: print and record what they moved; nothing is cleared meanwhile."""

from rich.console import Console
from rich.text import Text

from flows.execution.active_runs import prevent_clearing
from lineage.audit import log as audit_log
from lineage.exchange import sharing
from lineage.exchange.remote import describe_remote
from lineage.layout import Layout
from lineage.reports.formatting import format_count
from schemas.base import JsonObject


def push(layout: Layout, remote: str | None, target: str | None, console: Console) -> sharing.Moved:
    """Send a target with everything it was made from, or all artifacts; return what moved.

    Raise UnknownTarget, PlanError, StepError.
    """
    with prevent_clearing(layout):
        moved = sharing.push(layout, remote, target)
    _print_moved(console, "sent", moved)
    if moved.records:
        audit_log.append(layout, "push", remote=describe_remote(remote), artifacts=_list_keys(moved))
    return moved


def pull(layout: Layout, remote: str | None, target: str | None, console: Console, *, trust: bool) -> sharing.Moved:
    """Fetch a target with everything it was made from, or all artifacts; return what moved.

    Raise UnknownTarget, PlanError, StepError.
    """
    with prevent_clearing(layout):
        moved = sharing.pull(layout, remote, target, trust=trust)
    _print_moved(console, "fetched", moved)
    for key in moved.strangers:
        message = (
            f"signed by {key[:16]}, which is not trusted here; if you know whose key that is: posttrain pull --trust"
        )
        console.print(Text(message, "yellow"), soft_wrap=True)
    if moved.records or moved.trusted:
        facts = {"artifacts": _list_keys(moved), "trusted": list(moved.trusted)}
        audit_log.append(layout, "pull", remote=describe_remote(remote), **facts)
    return moved


def describe_moved(moved: sharing.Moved) -> JsonObject:
    """Return what a transfer moved as JSON."""
    artifacts = [{name: record[name] for name in ("step", "kind", "key", "recipe")} for record in moved.records]
    keys = {"untrusted_keys": list(moved.strangers), "trusted_keys": list(moved.trusted)}
    return {"artifacts": artifacts, "existed": moved.there, "files": moved.objects, **keys}


def _print_moved(console: Console, done: str, moved: sharing.Moved) -> None:
    for record in moved.records:
        console.print(Text(f"{done} {record['step']} ({record['key'][:16]})"), soft_wrap=True)
    sent, files = format_count(len(moved.records), "artifact"), format_count(moved.objects, "file")
    counts = f"{sent} {done}, {moved.there} existed already; {files}"
    console.print(counts, highlight=False)


def _list_keys(moved: sharing.Moved) -> list[str]:
    return [record["key"] for record in moved.records]
