"""What programs of the world of fits are given beside their data, as a file `kit.py`; nothing but the standard library.

A table is a list of rows (x, y) as numbers; a model is a pair (intercept, slope).
"""

import csv

Table = list[tuple[float, ...]]


def load(name: str) -> Table:
    """A table from a CSV file without a header."""
    with open(name) as file:  # noqa: PTH123 - programs use what is shortest
        return [tuple(map(float, row)) for row in csv.reader(file)]


def mean(table: Table) -> tuple[float, float]:
    """The same y everywhere: quick, and blind to x."""
    return sum(y for _, y in table) / len(table), 0.0


def line(table: Table) -> tuple[float, float]:
    """The line of least squares: slow."""
    middle_x, middle_y = (sum(row[i] for row in table) / len(table) for i in (0, 1))
    spread = sum((x - middle_x) ** 2 for x, _ in table)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in table) / spread
    return middle_y - slope * middle_x, slope


def save(model: tuple[float, float], table: Table) -> None:
    """Write the model's y for every x of a table into submission.csv."""
    with open("submission.csv", "w") as file:  # noqa: PTH123
        file.writelines(f"{model[0] + model[1] * row[0]!r}\n" for row in table)
