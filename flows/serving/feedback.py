"""The responses of a canary and the feedback on them, in a file of SQLite, so that both survive a restart.

No text is stored: a row has the id of a response, the model that gave it, the client as a keyed hash, and a score.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from flows.serving.canary_gate import Look
from schemas.base import JsonObject
from schemas.errors import PlanError

Arm = Literal["champion", "challenger"]
ARMS: tuple[Arm, Arm] = ("champion", "challenger")
FALLBACK = "fallback"
"""Arm of a response that the champion gave because the challenger failed; feedback on it does not count."""
MAX_UNRATED = 1_000_000
"""Latest responses that may still get feedback; rows of earlier ones without any are removed."""
PRUNE_EVERY = 10_000
TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, arm TEXT NOT NULL, client TEXT NOT NULL, at INTEGER NOT NULL,
    failed INTEGER NOT NULL DEFAULT 0, score REAL);
CREATE TABLE IF NOT EXISTS looks (number INTEGER PRIMARY KEY, content TEXT NOT NULL);
"""


@dataclass
class ClientScores:
    """The scores of one model's responses by client."""

    total: dict[str, float] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    def add(self, client: str, score: float, number: int = 1) -> None:
        """Add a score; `number` 0 changes the score of a response that has one."""
        self.total[client] = self.total.get(client, 0.0) + score
        self.count[client] = self.count.get(client, 0) + number

    def means(self) -> np.ndarray:
        """Return the mean score of every client: (N,). One client is one value, however much feedback it sends."""
        return np.array([total / self.count[client] for client, total in self.total.items()], dtype=np.float64)


class FeedbackFile:
    """The file of one canary: one champion, one challenger, one gate. Its methods may be called from any thread."""

    def __init__(self, file: Path, facts: JsonObject):
        """Open or create it. Raise PlanError if it is damaged, or belongs to a canary with other `facts`."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file, self.lock, self.recorded = file, threading.Lock(), 0
        self.scores: dict[Arm, ClientScores] = {arm: ClientScores() for arm in ARMS}
        try:
            self.base = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
            self.base.execute("PRAGMA journal_mode = WAL")
            self.base.execute("PRAGMA synchronous = NORMAL")
            self.base.executescript(TABLES)
            self._compare_facts(facts)
            self.salt = bytes.fromhex(self._keep_fact("salt", secrets.token_hex(32)))
            for arm, client, score in self.base.execute(
                "SELECT arm, client, score FROM responses WHERE score IS NOT NULL ORDER BY number"
            ):
                if arm in ARMS:
                    self.scores[arm].add(client, score)
        except (sqlite3.Error, ValueError) as error:
            raise PlanError(f"{file}: the feedback of this canary cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self.base.close()

    def hash_client(self, name: str) -> str:
        """Return a client's name as a hash that only this file can make."""
        return hmac.new(self.salt, name.encode(), hashlib.sha256).hexdigest()[:32]

    def record(self, response: str, arm: str, client: str) -> None:
        """Record a response that was given. Raise sqlite3.Error."""
        with self._write():
            self.base.execute(
                "INSERT INTO responses (id, arm, client, at) VALUES (?, ?, ?, ?)",
                (response, arm, client, int(time.time())),
            )
            self.recorded += 1
            if self.recorded % PRUNE_EVERY == 0:
                self.base.execute(
                    "DELETE FROM responses WHERE score IS NULL AND number <= (SELECT max(number) FROM responses) - ?",
                    (MAX_UNRATED,),
                )

    def fail(self, response: str, arm: Arm, client: str) -> None:
        """Record that a model gave no whole response, which counts as a score of 0. Raise sqlite3.Error."""
        with self._write():
            row = self.base.execute("SELECT score FROM responses WHERE id = ?", (response,)).fetchone()
            self.base.execute(
                "INSERT INTO responses (id, arm, client, at, failed, score) VALUES (?, ?, ?, ?, 1, 0) "
                "ON CONFLICT (id) DO UPDATE SET failed = 1, score = 0",
                (response, arm, client, int(time.time())),
            )
        self._count(arm, client, row[0] if row else None, 0.0)

    def rate(self, response: str, score: float) -> bool | None:
        """Set the score of a response; return whether it counts for its model. None: there is no such response.

        The latest feedback on a response replaces an earlier one; a failed response stays 0. Raise sqlite3.Error.
        """
        with self._write():
            row = self.base.execute(
                "SELECT arm, client, failed, score FROM responses WHERE id = ?", (response,)
            ).fetchone()
            if row is None:
                return None
            arm, client, failed, before = row
            if arm not in ARMS or failed:
                return False
            self.base.execute("UPDATE responses SET score = ? WHERE id = ?", (score, response))
        self._count(arm, client, before, score)
        return True

    def samples(self, arm: Arm) -> int:
        """Return how many clients gave feedback on a model's responses."""
        return len(self.scores[arm].total)

    def means(self, arm: Arm) -> np.ndarray:
        """Return the mean score of every client of a model: (N,)."""
        with self.lock:
            return self.scores[arm].means()

    def add_look(self, made: Look) -> None:
        """Record a look, so that none is repeated after a restart. Raise sqlite3.Error."""
        with self._write():
            self.base.execute("INSERT INTO looks VALUES (?, ?)", (made.number, json.dumps(made.facts())))

    def read_looks(self) -> list[Look]:
        """Return all looks in order."""
        with self.lock:
            rows = self.base.execute("SELECT content FROM looks ORDER BY number").fetchall()
        return [Look(**json.loads(content)) for (content,) in rows]

    def read_fact(self, name: str) -> JsonObject | None:
        """Return a fact about the canary, such as its decision; None if there is none."""
        with self.lock:
            row = self.base.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else None

    def write_fact(self, name: str, value: JsonObject) -> None:
        """Record a fact about the canary. Raise sqlite3.Error."""
        with self._write():
            self.base.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def _count(self, arm: Arm, client: str, before: float | None, score: float) -> None:
        with self.lock:
            self.scores[arm].add(client, score - (before or 0.0), 0 if before is not None else 1)

    @contextlib.contextmanager
    def _write(self) -> Iterator[None]:
        with self.lock:
            self.base.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.base.execute("ROLLBACK")
                raise
            self.base.execute("COMMIT")

    def _keep_fact(self, name: str, value: str) -> str:
        """Return the recorded value of a fact; record `value` if there is none."""
        with self._write():
            self.base.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
            return self.base.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0]

    def _compare_facts(self, facts: JsonObject) -> None:
        kept = json.loads(self._keep_fact("canary", json.dumps(facts)))
        if differences := [
            f"{name}: {kept.get(name)} → {facts[name]}" for name in facts if kept.get(name) != facts[name]
        ]:
            raise PlanError(
                f"this canary began with other settings ({', '.join(differences)}): looks at the same feedback by "
                f"another rule would raise its error rate; use the earlier ones, or move {self.file} to start again"
            )
