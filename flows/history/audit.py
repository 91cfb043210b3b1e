"""Print lineage, the results of verification, and the results of SQL queries."""

import json
from dataclasses import asdict, replace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lineage.audit.log import append
from lineage.layout import Layout
from lineage.reports.formatting import format_count
from lineage.tracing.ancestry import render, trace
from lineage.verification.verify import verify
from schemas.errors import PlanError


def show_lineage(target: str | None, layout: Layout, console: Console, as_json: bool) -> int:
    """Print the ancestors and descendants of a target. Raise PlanError without a target."""
    if target is None:
        raise PlanError("no target: name a step, run, key, digest, artifact, row or source; or use --verify")
    lineage_trace = trace(layout, target)
    if as_json:
        print(json.dumps(lineage_trace.as_json(), indent=1))
    else:
        console.print(render(lineage_trace))
    return 0


def show_verification(
    target: str | None,
    layout: Layout,
    console: Console,
    as_json: bool,
    all_signed: bool = False,
    rebuild: bool = False,
) -> int:
    """Verify a target, print the problems and record the result in the audit log; return 1 if there are problems."""
    verification = verify(layout, target, all_signed=all_signed, rebuild=rebuild)
    try:
        append(layout, "verified", target=target, artifacts=verification.artifacts, problems=len(verification.problems))
    except (OSError, PlanError) as error:  # a checkout that is read-only or has no signing key can still be verified
        why = getattr(error, "strerror", None) or str(error)
        note = f"{layout.state}: the verification could not be recorded: {why}"
        verification = replace(verification, notes=(*verification.notes, note))
    if as_json:
        print(json.dumps(asdict(verification), indent=1))
        return 1 if verification.problems else 0
    for lines, style in (
        (verification.notes, "yellow"),
        (verification.problems, "red"),
        (verification.rebuilt, "green"),
    ):
        for line in map(_one_line, lines):
            console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)
    verdict = format_count(len(verification.problems), "difference") if verification.problems else "all as recorded"
    counts = f"{format_count(verification.artifacts, 'artifact')} ({verification.signed} signed)"
    files = format_count(verification.files, "file")
    entries = f"{verification.entries:,} audit {'entry' if verification.entries == 1 else 'entries'}"
    console.print(f"{counts}, {files}, {entries}: {verdict}", highlight=False, soft_wrap=True)
    return 1 if verification.problems else 0


def _one_line(text: str) -> str:
    """Return a text as one line, with unprintable characters escaped, such as those in names of files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def show_query(sql: str, layout: Layout, console: Console, as_json: bool) -> None:
    """Print the result of a query as a table, or as a JSON list of rows."""
    from lineage.catalogue.sql_view import query  # imports duckdb

    result = query(layout, sql)
    if as_json:
        print(json.dumps(result.to_pylist(), indent=1, default=str))
        return
    table = Table(*map(escape, result.column_names))
    for row in result.to_pylist():
        table.add_row(*("" if value is None else escape(str(value)) for value in row.values()))
    console.print(table)
