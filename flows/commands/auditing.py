"""Commands about lineage: ancestors and descendants, verification, exports, SQL."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import AsJson, console


class ExportFormat(enum.StrEnum):
    """Format of `export`: OpenLineage events, PROV-JSON, PROV-N, or CycloneDX."""

    openlineage = "openlineage"
    prov = "prov"
    provn = "provn"
    bom = "bom"


def lineage(
    target: Annotated[
        str | None,
        typer.Argument(help="A step, key, digest, run, artifact folder, row id or source; default: all."),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check files, seals, signatures and the audit log.")] = False,
    signed: Annotated[bool, typer.Option("--signed", help="With --verify: refuse unsigned artifacts.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="With --verify: write an index or decisions that differ again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the ancestors of a target, up to rows of data, and its descendants, down to every model."""
    from flows.history.audit import show_lineage, show_verification
    from lineage.layout import Layout

    if verify or signed or rebuild:
        raise typer.Exit(show_verification(target, Layout.find(), console, as_json, signed, rebuild))
    raise typer.Exit(show_lineage(target, Layout.find(), console, as_json))


def export(
    what: Annotated[ExportFormat, typer.Argument(help="What to write.")],
    target: Annotated[str, typer.Argument(help="As for `lineage`; for `bom` one that is a single model.")],
    out: Annotated[Path | None, typer.Option(help="A file to write; default: the terminal.")] = None,
    send: Annotated[
        bool, typer.Option("--send", help="With openlineage: give the events to the server of OPENLINEAGE_URL.")
    ] = False,
) -> None:
    """Export the lineage of a target as OpenLineage events, W3C PROV, or a CycloneDX bill of materials."""
    from flows.history.exporting import export_text, send_events
    from lineage.layout import Layout

    text = send_events(what.value, target, Layout.find()) if send else export_text(what.value, target, Layout.find())
    if out is None:
        print(text, end="")
    else:
        out.write_text(text)


def query(
    sql: Annotated[str, typer.Argument(help="A DuckDB query over steps, inputs, outputs, files, metrics, curves, ...")],
    as_json: AsJson = False,
) -> None:
    """Query manifests, curves, evaluations and trajectories with SQL."""
    from flows.history.audit import show_query
    from lineage.layout import Layout

    show_query(sql, Layout.find(), console, as_json)
