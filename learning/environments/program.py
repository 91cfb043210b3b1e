"""Programs as actions: what the model writes runs in the sandbox, and is scored on rows that it never sees.

What an action took is read from the marks in its log (`environments.instrumentation`), on a clock whose prices are an
option; so is its progress, which earns something where the program did not get to the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.environments.instrumentation import Mark, instrumented, marks
from learning.environments.protocol import Outcome
from learning.sandbox.run import Ran, available, run
from learning.worlds import kit
from learning.worlds.fits import GIVEN, Points, Row, expanded, points, score, shown
from schemas.errors import StepError

MILESTONES = {
    "data": ["load", "reader", "DictReader"],
    "model": ["mean", "line", "linear_regression"],
    "saved": ["save"],
}
LEAST = 1.0
"""Units that any action takes."""
SHOWN = 40
"""Characters of an error that the model is told."""


class Environment:
    """A turn is a program for the row's table (`learning.worlds.fits`): words of a tiny language, or Python.

    It earns `credit` for its progress (the share of the milestones that it reached, all of them if it got to the end),
    and 1 − `credit` times its score on the test's rows. `costs` are the prices of functions on the clock, in seconds of
    it; without any, time is real. With a `budget` programs are asked for until so much time has passed, and one that
    would pass the end is cut there; without one, until one got to the end. `remember`: a program that has run on the
    same table is not run again, for programs without chance in them.
    """

    def __init__(
        self,
        *,
        language: Literal["words", "python"] = "words",
        costs: dict[str, float] = {"mean": 1.0, "line": 10.0},  # noqa: B006 (never changed)
        credit: Annotated[float, Field(ge=0, le=1)] = 0.3,
        budget: Annotated[float, Field(gt=0)] | None = None,
        seconds: Annotated[float, Field(gt=0)] = 30.0,
        memory_mb: Annotated[int, Field(ge=64)] = 256,
        remember: bool = False,
    ):
        """`seconds` (real ones) and `memory_mb` bound each program. Raises StepError where there is no sandbox."""
        if reason := available():
            raise StepError(f"env program: {reason}")
        self.language, self.costs, self.credit, self.budget = language, costs, credit, budget
        self.bounds = (seconds, memory_mb)
        self.memory: dict[tuple[str, tuple[Any, ...]], Tried] | None = {} if remember else None

    def begin(self, row: Row, seed: int) -> "Work":
        """An episode on a table. Raises StepError for a row without one."""
        return Work(self, points(row), seed)

    def tried(self, action: str, table: Points, word: str) -> "Tried":
        """What comes of a program; `word` begins its marks."""
        if self.memory is None:
            return self._run(action, table, word)
        key = (action, tuple(table))
        if key not in self.memory:
            self.memory[key] = self._run(action, table, word)
        return self.memory[key]

    def _run(self, action: str, table: Points, word: str) -> "Tried":
        program = expanded(action) if self.language == "words" else action
        program = instrumented(program, word, milestones=MILESTONES, costs=self.costs)
        files = {"kit.py": Path(kit.__file__).read_text(), "train.csv": _csv(table[:GIVEN])}
        files["test.csv"] = _csv([(x,) for x, _ in table[GIVEN:]])
        seconds, memory_mb = self.bounds
        ran = run(program, files=files, seconds=seconds, memory_mb=memory_mb, keep=("submission.csv",))
        of = None if ran.code else score(_numbers(ran), table)
        log = marks(ran.stdout, word, milestones=MILESTONES, costs=self.costs)
        return Tried(tuple(log), of, _error(ran), ran.seconds)

    def earned(self, reached: int, of: float | None) -> float:
        """Reward of an action that reached so many milestones, and, if it got to the end, its score."""
        progress = reached / len(MILESTONES) if of is None else 1.0
        return self.credit * progress + (1 - self.credit) * (of or 0.0)


class Work:
    """One table under way."""

    def __init__(self, of: Environment, table: Points, seed: int) -> None:
        self.of, self.table, self.seed, self.turns, self.spent = of, table, seed, 0, 0.0

    def step(self, action: str) -> Outcome:
        """Run a program."""
        self.turns += 1
        word = np.random.default_rng([self.seed, self.turns]).bytes(8).hex()
        tried = self.of.tried(action, self.table, word)
        left = None if self.of.budget is None else self.of.budget - self.spent
        units, reached, whole = within(tried.log, left)
        of = tried.score if whole else None
        took = max(LEAST, units) if self.of.costs else tried.seconds
        self.spent += took
        ended = of is not None if self.of.budget is None else self.spent >= self.of.budget
        said = tried.error if of is None else shown(of)
        return Outcome(
            said if whole else "time is over",
            done=ended,
            reward=self.of.earned(reached, of),
            seconds=took if self.of.costs else None,
            ok=of is not None,
        )


@dataclass(frozen=True)
class Tried:
    """What came of a program."""

    log: tuple[Mark, ...]
    score: float | None
    """None: it did not get to the end."""
    error: str
    seconds: float


def within(log: Sequence[Mark], left: float | None) -> tuple[float, int, bool]:
    """Units that a program took, milestones it reached, whether it was not cut because `left` units were over."""
    units, reached = 0.0, set()
    for mark in log:
        if mark.cost is None:
            reached.add(mark.name)
            continue
        units += mark.cost
        if left is not None and units > left:
            return left, len(reached), False
    return units, len(reached), True


def _csv(rows: Sequence[Sequence[float]]) -> str:
    return "".join(",".join(map(repr, row)) + "\n" for row in rows)


def _numbers(ran: Ran) -> list[float]:
    """What was handed in; nothing where it is not numbers."""
    try:
        return [float(line) for line in ran.files.get("submission.csv", b"").decode().split()]
    except ValueError:
        return []


def _error(ran: Ran) -> str:
    """Why it did not get to the end, in a line."""
    return (ran.told or (ran.stderr.strip().splitlines() or ["nothing was handed in"])[-1])[:SHOWN]
