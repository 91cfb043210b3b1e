"""What a program of the environment `program` imports as `kit`: it asks the environment, which does the work.

The work is done outside of the program's process (`learning.toy_tasks.environments.program_requests`), and so is the
reckoning: a
program that calls these functions by another name, replaces them or writes their messages itself has asked for the same
work.
"""

import csv
import json
import os

CHANNEL, LONGEST = 3, 65536


def ask(what, **details):
    """What the environment answers; raises ValueError, with its words, where it refuses."""
    os.write(CHANNEL, json.dumps({"do": what, **details}).encode())
    answer = json.loads(os.read(CHANNEL, LONGEST))
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["value"]


def read(name):
    """The rows of a CSV file without a header."""
    with open(name) as file:  # noqa: PTH123 - pathlib takes longer to import than all this
        return [tuple(map(float, row)) for row in csv.reader(file)]


class Table:
    """A table of the task; its rows are read where a program asks for them, since that has a price."""

    def __init__(self, name):
        self.name, self.kept = name, None

    @property
    def rows(self):
        """All rows, as tuples of numbers."""
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
    """A table from a CSV file without a header."""
    return Table(name) if ask("load", table=name) else read(name)


def given(table):
    """A table as a message says it: by name, or by its rows."""
    return {"table": table.name} if isinstance(table, Table) else {"rows": [list(row) for row in table]}


def mean(table):
    """The same y everywhere: quick, and blind to x."""
    return tuple(ask("mean", **given(table)))


def line(table):
    """The line of least squares: slow."""
    return tuple(ask("line", **given(table)))


def save(model, table):
    """Hand in the model's y for every x of a table."""
    ask("save", numbers=[model[0] + model[1] * row[0] for row in table])
