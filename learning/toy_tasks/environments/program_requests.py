"""Requests of a program to its environment: executed here, outside of the program's process, and logged with costs.

A message names an operation and its data. Only what was executed counts, not what a message claims, so that a program
can neither reach a milestone without the work nor get the work without its cost.
(Yang et al. 2025, environment instrumentation: there a frozen language model inserts print statements in the program.)
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from learning.toy_tasks import kit
from learning.toy_tasks.fits import GIVEN, Points
from schemas.base import JsonObject

TRAIN, TEST = "train.csv", "test.csv"
DATA, MODEL, SAVED = MILESTONES = ("data", "model", "saved")
METHODS = {"mean": kit.mean, "line": kit.line}
REQUESTS = ("load", *METHODS, "save")
LONGEST = 64 * 1024
"""Maximum size of a file with predictions, in bytes."""
LARGEST = 1e100
"""Largest absolute value of a number in a message: its square is still finite."""


@dataclass(frozen=True)
class Mark:
    """One line of the log."""

    name: str
    """Name of a milestone or of an operation that was begun."""
    cost: float | None
    """Units of the clock; None: a milestone."""


@dataclass
class ProgramRequests:
    """Executes and logs the requests of one run of a program."""

    table: Points
    costs: Mapping[str, float]
    log: list[Mark] = field(default_factory=list)
    loaded: bool = False
    saved: list[float] | None = None
    """The last predictions that were saved."""

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message; an invalid message gets an error as its answer."""
        try:
            request = json.loads(message, parse_constant=_refuse_constant)
            value = self._done(request if isinstance(request, dict) else {})
        except (ValueError, ArithmeticError, RecursionError) as error:
            return json.dumps({"error": str(error)[:200]}).encode()
        return json.dumps({"value": value}).encode()

    def reach(self, milestone: str) -> None:
        """Log a verified milestone."""
        self.log.append(Mark(milestone, None))

    def _done(self, request: JsonObject) -> Any:
        """Execute a request after logging its cost; raise ValueError with a message for the program."""
        what = request.get("do")
        does: dict[str, Callable[[JsonObject], Any]] = {"load": self._load, "save": self._save}
        if what not in REQUESTS:
            raise ValueError(f"ask for one of {', '.join(REQUESTS)}")
        if what in self.costs:
            self.log.append(Mark(what, self.costs[what]))
        return does[what](request) if what in does else self._fit(METHODS[what], request)

    def _load(self, request: JsonObject) -> bool:
        """Return whether the name is one of the task's tables."""
        if request.get("table") == TRAIN:
            self.loaded = True
            self.reach(DATA)
        return request.get("table") in (TRAIN, TEST)

    def _fit(self, method: Callable[[kit.Table], tuple[float, float]], request: JsonObject) -> list[float]:
        """Return a model of the training table or of given rows; rows of the training table reach the milestone."""
        train: kit.Table = list(self.table[:GIVEN])
        if "rows" in request:
            rows = [tuple(_parse_numbers(row, 2)) for row in _require_list(request["rows"])]
            ours = bool(rows) and set(rows) <= set(train)
        else:
            rows, ours = train, True
            if request.get("table") != TRAIN or not self.loaded:
                raise ValueError(f"a model is fitted to {TRAIN} once it is loaded, or to rows (x, y)")
        model = _parse_numbers(list(method(rows)), 2)
        if ours:
            self.reach(MODEL)
        return model

    def _save(self, request: JsonObject) -> None:
        """Store predictions for the test rows."""
        self.saved = _parse_numbers(request.get("numbers"), len(self.table) - GIVEN)
        self.reach(SAVED)


def parse_predictions(text: bytes, rows: int) -> list[float] | None:
    """Return the numbers in a file, one per line; None if there is not one finite number for each row."""
    if len(text) > LONGEST:
        return None
    try:
        return _parse_numbers([float(line) for line in text.decode("ascii").split()], rows)
    except ValueError:
        return None


def _require_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a table is a list of rows")
    return value


def _parse_numbers(value: Any, count: int) -> list[float]:
    """Return `count` finite numbers; raise ValueError if the value is anything else."""
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"{count} numbers are needed")
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in value):
        raise ValueError("that is no number")
    numbers = [float(one) if abs(one) <= LARGEST else math.inf for one in value]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"numbers are finite and at most {LARGEST:g}")
    return numbers


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")
