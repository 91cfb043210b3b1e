"""What the environment `program` does for programs of the world of fits, on tables that it has checked.

A table is a list of rows (x, y) as numbers; a model is a pair (intercept, slope).
"""

Table = list[tuple[float, ...]]


def mean(table: Table) -> tuple[float, float]:
    """The same y everywhere: quick, and blind to x."""
    return sum(y for _, y in table) / len(table), 0.0


def line(table: Table) -> tuple[float, float]:
    """The line of least squares: slow."""
    middle_x, middle_y = (sum(row[i] for row in table) / len(table) for i in (0, 1))
    spread = sum((x - middle_x) ** 2 for x, _ in table)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in table) / spread
    return middle_y - slope * middle_x, slope
