"""Extract the problems of preference pairs."""

from typing import Any

from learning.data.rows import SCHEMAS, read_rows, write_rows


def problems_of_pairs(context: Any) -> dict[str, float]:
    """Write every problem of the input `pairs` once to the output `prompts`."""
    rows = {row["id"]: row for row in read_rows(context.input("pairs"), "preference_pairs")}
    names = SCHEMAS["prompts"].names
    write_rows(context.output("prompts"), "prompts", [{name: row.get(name) for name in names} for row in rows.values()])
    return {"problems": len(rows)}
