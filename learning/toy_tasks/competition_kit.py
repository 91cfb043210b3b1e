"""The module that programs of toy competitions import as `kit`: methods that fit, predict and write the submission."""

import csv


def read(name):
    """Return the rows of a CSV file as dictionaries."""
    with open(name) as file:  # noqa: PTH123 - pathlib takes longer to import than all this
        return list(csv.DictReader(file))


def save(values):
    """Write the submission."""
    with open("submission.csv", "w") as file:  # noqa: PTH123
        file.write("".join(f"{value}\n" for value in values))


def mean():
    """Predict the mean of the target."""
    values = [float(row["y"]) for row in read("train.csv")]
    save([sum(values) / len(values)] * len(read("test.csv")))


def line(column):
    """Predict by a least-squares line in one column."""
    rows = read("train.csv")
    pairs = [(float(row[column]), float(row["y"])) for row in rows]
    x_mean, y_mean = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    slope = sum((x - x_mean) * (y - y_mean) for x, y in pairs) / sum((x - x_mean) ** 2 for x, _ in pairs)
    save([y_mean + slope * (float(row[column]) - x_mean) for row in read("test.csv")])


def most():
    """Predict the most frequent value of the target."""
    values = [row["y"] for row in read("train.csv")]
    save([max(sorted(set(values)), key=values.count)] * len(read("test.csv")))


def split(column):
    """Predict by the most frequent value on either side of 0 in one column."""
    sides = {True: [], False: []}
    for row in read("train.csv"):
        sides[float(row[column]) > 0].append(row["y"])
    best = {side: max(sorted(set(values)), key=values.count) if values else "" for side, values in sides.items()}
    save([best[float(row[column]) > 0] for row in read("test.csv")])
