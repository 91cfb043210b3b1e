"""Environment `program`: an action is a program that runs in the sandbox and is scored on rows that it never sees.

The environment records the duration of an action, on a clock with configurable costs, and its progress, which gives
partial credit to a program that did not finish. It executes the requests of a program itself
(`environments.program_requests`), so that the program cannot influence these records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from learning.environments.protocol import Outcome
from learning.sandbox.run import available, run
from learning.sandbox.watchdog import Ran
from learning.toy_tasks.environments import program_kit
from learning.toy_tasks.environments.program_requests import (
    DATA,
    MILESTONES,
    MODEL,
    REQUESTS,
    SAVED,
    TEST,
    TRAIN,
    Mark,
    ProgramRequests,
    parse_predictions,
)
from learning.toy_tasks.fits import GIVEN, Points, Row, expand_words, format_score, make_table, score_predictions
from schemas.errors import StepError

SUBMISSION = "submission.csv"
OWN = "rows"
"""Name of the charge for reading the training rows: the highest cost, since the program can compute from them anything
that has a cost."""
Price = Annotated[float, Field(ge=0)]
MIN_DURATION = 1.0
"""Minimum duration of an action, in units of the clock."""
SHOWN = 40
"""Maximum length of an error message to the model, in characters."""


class Environment:
    """A turn is a program for the row's table (`learning.toy_tasks.fits`): words of a tiny language, or Python.

    The reward is `credit` times its progress (the share of the milestones that it reached) plus 1 − `credit` times its
    score on the test rows if it finished. `costs` are the costs of the kit's functions in seconds of the clock; a
    program that reads the training rows itself pays the highest. Without costs, the clock is real time. With a
    `budget`, the episode lasts until that much time has passed, and a program that would exceed it is cut off; without
    one, until a program finishes. `remember` caches results by program and table, for deterministic programs.
    """

    def __init__(
        self,
        *,
        language: Literal["words", "python"] = "words",
        costs: dict[str, Price] = {"mean": 1.0, "line": 10.0},  # noqa: B006 (never changed)
        credit: Annotated[float, Field(ge=0, le=1)] = 0.3,
        budget: Annotated[float, Field(gt=0)] | None = None,
        seconds: Annotated[float, Field(gt=0)] = 30.0,
        memory_mb: Annotated[int, Field(ge=64)] = 256,
        remember: bool = False,
    ):
        """Limit each program to `seconds` of real time and `memory_mb`; raise StepError if there is no sandbox."""
        if reason := available():
            raise StepError(f"env program: {reason}")
        if strange := sorted(costs.keys() - set(REQUESTS)):
            raise StepError(f"env program: costs of {', '.join(strange)}: the kit has {', '.join(REQUESTS)}")
        self.language, self.costs, self.credit, self.budget = language, costs, credit, budget
        self.bounds = (seconds, memory_mb)
        self.memory: dict[tuple[str, tuple[Any, ...]], Attempt] | None = {} if remember else None

    def begin(self, row: Row, seed: int) -> "Work":
        """Return a deterministic episode on the table of a row; raise StepError if the row has none."""
        return Work(self, make_table(row))

    def tried(self, action: str, table: Points) -> "Attempt":
        """Return the result of a program on a table."""
        if self.memory is None:
            return self._run(action, table)
        key = (action, tuple(table))
        if key not in self.memory:
            self.memory[key] = self._run(action, table)
        return self.memory[key]

    def _run(self, action: str, table: Points) -> "Attempt":
        program = expand_words(action) if self.language == "words" else action
        files = {"kit.py": Path(program_kit.__file__).read_text(), TRAIN: _format_csv(table[:GIVEN])}
        files[TEST] = _format_csv([(x,) for x, _ in table[GIVEN:]])
        seconds, memory_mb = self.bounds
        requests = ProgramRequests(table, self.costs)
        bounds = {"seconds": seconds, "memory_mb": memory_mb}
        ran = run(program, files=files, **bounds, keep=[SUBMISSION], notice=[TRAIN], answer=requests.answer)
        log, of = self._judged(ran, requests)
        return Attempt(tuple(log), of, _describe_error(ran), ran.seconds)

    def _judged(self, ran: Ran, requests: ProgramRequests) -> tuple[list[Mark], float | None]:
        """Return the log of a program and, if it finished, its score; both are observed outside of its process."""
        took_rows = TRAIN in ran.opened
        if SUBMISSION in ran.files:
            requests.saved = parse_predictions(ran.files[SUBMISSION], len(requests.table) - GIVEN)
            if requests.saved is not None:
                requests.reach(SAVED)
        of = None if ran.code or requests.saved is None else score_predictions(requests.saved, requests.table)
        before = [Mark(OWN, max(self.costs.values(), default=0.0)), Mark(DATA, None)] if took_rows else []
        after = [Mark(MODEL, None)] if took_rows and of is not None else []
        return [*before, *requests.log, *after], of

    def earned(self, reached: int, of: float | None) -> float:
        """Return the reward of an action from its number of milestones and, if it finished, its score."""
        return self.credit * reached / len(MILESTONES) + (1 - self.credit) * (of or 0.0)


class Work:
    """An episode on one table."""

    def __init__(self, of: Environment, table: Points) -> None:
        self.of, self.table, self.spent = of, table, 0.0

    def step(self, action: str) -> Outcome:
        """Run a program and return its outcome."""
        tried = self.of.tried(action, self.table)
        left = None if self.of.budget is None else self.of.budget - self.spent
        units, reached, finished = limit_log(tried.log, left)
        of = tried.score if finished else None
        took = max(MIN_DURATION, units) if self.of.costs else tried.seconds
        self.spent += took
        ended = of is not None if self.of.budget is None else self.spent >= self.of.budget
        reply = tried.error if of is None else format_score(of)
        return Outcome(
            reply if finished else "time is over",
            done=ended,
            reward=self.of.earned(reached, of),
            seconds=took if self.of.costs else None,
            ok=of is not None,
        )


@dataclass(frozen=True)
class Attempt:
    """The result of a program."""

    log: tuple[Mark, ...]
    score: float | None
    """None: it did not finish."""
    error: str
    seconds: float


def limit_log(log: Sequence[Mark], left: float | None) -> tuple[float, int, bool]:
    """Return units that a program took, milestones it reached, and whether it finished within `left` units."""
    units, reached = 0.0, set()
    for mark in log:
        if mark.cost is None:
            reached.add(mark.name)
            continue
        units += mark.cost
        if left is not None and units > left:
            return left, len(reached), False
    return units, len(reached), True


def _format_csv(rows: Sequence[Sequence[float]]) -> str:
    return "".join(",".join(map(repr, row)) + "\n" for row in rows)


def _describe_error(ran: Ran) -> str:
    """Return in one line why a program did not finish."""
    return (ran.reason or (ran.stderr.strip().splitlines() or ["nothing was handed in"])[-1])[:SHOWN]
