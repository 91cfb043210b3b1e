"""Ask what was made, from what, and whether it is still what it was."""

from typing import Annotated

import typer

from flows.verbs.options import AsJson, console


def lineage(
    target: Annotated[
        str | None,
        typer.Argument(help="A step, key, digest, run, artifact folder, row id or source; default: all."),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file again and compare.")] = False,
    as_json: AsJson = False,
) -> None:
    """Where something comes from, up to the rows of data, and what it touched, down to every model."""
    from flows.audit import show_lineage, show_verification
    from lineage.layout import Layout

    show = show_verification if verify else show_lineage
    raise typer.Exit(show(target, Layout.find(), console, as_json))


def query(
    sql: Annotated[str, typer.Argument(help="A DuckDB query over steps, inputs, outputs, files, metrics, curves, ...")],
    as_json: AsJson = False,
) -> None:
    """Query manifests, curves, evaluations and trajectories with SQL."""
    from flows.audit import show_query
    from lineage.layout import Layout

    show_query(sql, Layout.find(), console, as_json)
