"""The module that programs of the environment `program` import as `kit`: it sends requests to the environment.

The environment executes the requests and counts their cost outside of the program's process
(`learning.toy_tasks.environments.program_requests`): a program that renames or replaces these functions, or writes
their messages itself, makes the same requests at the same cost.
"""

import csv
import json
import os

CHANNEL, LONGEST = 3, 65536


def ask(what, **details):
    """Return the environment's answer; raise ValueError with its message if it refuses."""
    os.write(CHANNEL, json.dumps({"do": what, **details}).encode())
    answer = json.loads(os.read(CHANNEL, LONGEST))
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["value"]


def read(name):
    """Return the rows of a CSV file without a header."""
    with open(name) as file:  # noqa: PTH123 - pathlib takes longer to import than all this
        return [tuple(map(float, row)) for row in csv.reader(file)]


class Table:
    """A table of the task; its rows are read only if a program asks for them, since that has a cost."""

    def __init__(self, name):
        self.name, self.kept = name, None

    @property
    def rows(self):
        """Return all rows as tuples of numbers."""
        if self.kept is None:
            self.kept = read(self.name)
        return self.kept

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return self.rows[place]

    def __add__(self, other):
        return self.rows + list(other)


def load(name):
    """Return a table from a CSV file without a header."""
    return Table(name) if ask("load", table=name) else read(name)


def describe_table(table):
    """Return a table as the fields of a message: its name, or its rows."""
    return {"table": table.name} if isinstance(table, Table) else {"rows": [list(row) for row in table]}


def mean(table):
    """Return the constant model (mean of y, slope 0): fast, ignores x."""
    return tuple(ask("mean", **describe_table(table)))


def line(table):
    """Return the least-squares line: slow."""
    return tuple(ask("line", **describe_table(table)))


def save(model, table):
    """Submit the model's y for every x of a table."""
    ask("save", numbers=[model[0] + model[1] * row[0] for row in table])
