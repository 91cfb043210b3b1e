"""Model fitting that the environment `program` executes for programs of the toy task `fits`, on checked tables.

A table is a list of rows (x, y) as numbers; a model is a pair (intercept, slope).
"""

Table = list[tuple[float, ...]]


def mean(table: Table) -> tuple[float, float]:
    """Return the constant model (mean of y, slope 0): fast, ignores x."""
    return sum(y for _, y in table) / len(table), 0.0


def line(table: Table) -> tuple[float, float]:
    """Return the least-squares line: slow."""
    middle_x, middle_y = (sum(row[i] for row in table) / len(table) for i in (0, 1))
    spread = sum((x - middle_x) ** 2 for x, _ in table)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in table) / spread
    return middle_y - slope * middle_x, slope
