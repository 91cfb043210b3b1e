"""Permanent store of paid answers: one SQLite file for all steps of a checkout, with the cost of each step.

An answer is on disk before it is used, so that a kill loses at most the running requests.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from learning.api.requests import Answer, load_answer
from schemas.errors import StepError

FILE = "answers.sqlite"
TIMEOUT = 60.0
"""Timeout for another process that writes."""
PER_QUERY = 500
TABLES = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, endpoint TEXT, model TEXT, answer TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spent (step TEXT PRIMARY KEY, input INTEGER, output INTEGER, cost REAL, charged INTEGER)
 WITHOUT ROWID;
"""
ADD = """
INSERT INTO spent VALUES (?, ?, ?, ?, ?) ON CONFLICT (step) DO UPDATE
SET input = input + excluded.input, output = output + excluded.output, cost = cost + excluded.cost,
    charged = charged + excluded.charged
"""


@dataclass(frozen=True)
class Spent:
    """Amount that a step has paid, in all of its attempts."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    charged: int = 0
    """Tokens that have a price."""

    @property
    def tokens(self) -> int:
        """Of prompts and answers."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(*(one - two for one, two in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Paid:
    """A new answer, with the step that paid and its cost."""

    key: str
    answer: Answer
    step: str
    endpoint: str
    model: str
    cost: float | None
    """None: the endpoint has no price."""

    @property
    def line(self) -> tuple[str, int, int, float, int]:
        """Return step, input and output tokens, cost, and charged tokens."""
        used = self.answer.input_tokens, self.answer.output_tokens
        return self.step, *used, self.cost or 0.0, 0 if self.cost is None else sum(used)


class ResponseStore:
    """The SQLite file, which many processes may open; raise StepError if it cannot be read or written."""

    def __init__(self, folder: Path):
        self.file = folder / FILE
        with self._name_file_in_errors():
            folder.mkdir(parents=True, exist_ok=True)
            # Every commit is on disk when it returns; a journal per commit also works on shared file systems.
            self.base = sqlite3.connect(self.file, timeout=TIMEOUT, check_same_thread=False)
            self.base.execute("PRAGMA synchronous = FULL")
            self.base.executescript(TABLES)
        self.lock = threading.Lock()

    def close(self) -> None:
        """Close the file."""
        self.base.close()

    def find(self, keys: Sequence[str]) -> dict[str, Answer]:
        """Return the stored answers by key."""
        stored: dict[str, Answer] = {}
        with self.lock, self._name_file_in_errors():
            for start in range(0, len(keys), PER_QUERY):
                some = keys[start : start + PER_QUERY]
                marks = ",".join("?" * len(some))
                rows = self.base.execute(f"SELECT key, answer FROM answers WHERE key IN ({marks})", some)
                stored |= {key: load_answer(text) for key, text in rows}
        return stored

    def keep(self, paid: Sequence[Paid]) -> list[Answer]:
        """Store answers and their costs in one commit; return the stored ones, which may be another process's."""
        rows = [(one.key, one.endpoint, one.model, one.answer.dump()) for one in paid]
        with self.lock, self._name_file_in_errors(), self.base:
            self.base.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", rows)
            self.base.executemany(ADD, [one.line for one in paid])
            stored = [self.base.execute("SELECT answer FROM answers WHERE key = ?", (one.key,)) for one in paid]
            texts = [cursor.fetchone()[0] for cursor in stored]
        return [load_answer(text) for text in texts]

    def spent(self, step: str) -> Spent:
        """Return the amount that a step has paid."""
        with self.lock, self._name_file_in_errors():
            row = self.base.execute("SELECT input, output, cost, charged FROM spent WHERE step = ?", (step,)).fetchone()
        return Spent(*row) if row else Spent()

    @contextmanager
    def _name_file_in_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            raise StepError(
                f"the answers of remote models in {self.file} cannot be read or written: {error}"
            ) from error
