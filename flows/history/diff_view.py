"""Display of the differences between two runs in the terminal."""

from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from flows.history.diff import Change, Difference, MetricChange
from flows.history.diff_data import DataChange
from flows.planning.difference import format_value
from lineage.reports.formatting import format_duration

SHOWN = 12
"""Most row ids per list; `--json` has all of them."""
OUTCOMES = {
    "same": "the same artifact",
    "again": "ran again, same bytes",
    "changed": "changed",
    "unfinished": "not finished in both",
    "only_before": "only in the first",
    "only_after": "only in the second",
}


def render(difference: Difference) -> Group:
    """Return one table per kind of difference, or one line if there are none."""
    head = Text.assemble(("before ", "dim"), difference.before, ("  after ", "dim"), difference.after)
    if difference.is_empty:
        return Group(head, Text("nothing differs: recipe, data, code, environment, metrics and artifacts are the same"))
    return Group(head, *_make_tables(difference))


def _make_tables(difference: Difference) -> Iterator[Table]:
    if difference.recipe:
        yield _make_table("Recipe", ("key", "before", "after"), [_format_row(change) for change in difference.recipe])
    if difference.data:
        yield _make_table(
            "Data",
            ("what", "rows", "added", "removed", "changed"),
            [_format_data(change) for change in difference.data],
        )
    if difference.code:
        rows = [(change.what, _format_code(change), ", ".join(change.steps)) for change in difference.code]
        yield _make_table("Code", ("module", "", "steps"), rows)
    if difference.environment:
        rows = [(*_format_row(change), ", ".join(change.steps)) for change in difference.environment]
        yield _make_table("Environment", ("what", "before", "after", "steps"), rows)
    if difference.metrics:
        columns = ("step", "metric", "before", "after", "difference", "")
        yield _make_table("Metrics", columns, [_format_metric(change) for change in difference.metrics])
    moved = [(what, getattr(difference.steps, name)) for name, what in OUTCOMES.items()]
    yield _make_table("Artifacts", ("", "steps"), [(what, ", ".join(names)) for what, names in moved if names])
    yield _make_table("Cost", ("", "before", "after"), list(_format_cost(difference)))


def _make_table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _format_row(change: Change) -> tuple[str, str, str]:
    return change.what, format_value(change.before), format_value(change.after)


def _format_code(change: Change) -> str:
    return "is used now" if change.before is None else "is no longer used" if change.after is None else "changed"


def _format_data(change: DataChange) -> tuple[str, ...]:
    if change.source is not None:
        names = change.source[0] if change.source[0] == change.source[1] else " → ".join(map(str, change.source))
        digests = " → ".join(str(d)[:12] for d in change.digest)
        return f"{change.step}.{change.port} ← {names}: {digests}", "", "", "", ""
    rows = f"{change.rows[0]:,} → {change.rows[1]:,}" if change.rows else "not a table"
    ids = (_format_ids(names) for names in (change.added, change.removed, change.changed))
    return f"{change.step}.{change.output}", rows, *ids


def _format_ids(names: tuple[str, ...] | None) -> str:
    if names is None:
        return "not compared"
    more = f", and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return f"{len(names):,}: {', '.join(names[:SHOWN])}{more}" if names else "0"


def _format_metric(change: MetricChange) -> tuple[str, ...]:
    gain = f"{change.after - change.before:+.4g}"
    if change.interval is not None:
        gain += f" [{change.interval[0]:+.4g}, {change.interval[1]:+.4g}]"
    verdict = {True: "outside the noise", False: "inside the noise", None: ""}[change.outside]
    return change.step, change.metric, f"{change.before:.4g}", f"{change.after:.4g}", gain, verdict


def _format_cost(difference: Difference) -> Iterator[tuple[str, ...]]:
    names = {
        "seconds": "steps took",
        "cpu_seconds": "processor time",
        "gpu_seconds": "GPU time",
        "saved_seconds": "the cache saved",
    }
    for what, name in names.items():
        if any(difference.cost[what]):
            yield name, *(format_duration(seconds) for seconds in difference.cost[what])
