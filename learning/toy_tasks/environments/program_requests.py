"""What programs ask their environment for: done here, outside of the process that asks, and noted with its price.

A message says what is to be done and on what. It is a request and nothing else: whatever it claims, what counts is what
was done for it. So a mark cannot be had without the work, nor the work without its price.
(Yang et al. 2025, environment instrumentation: there a frozen language model puts lines that print into the program.)
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from learning.toy_tasks import kit
from learning.toy_tasks.fits import GIVEN, Points

TRAIN, TEST = "train.csv", "test.csv"
DATA, MODEL, SAVED = MILESTONES = ("data", "model", "saved")
METHODS = {"mean": kit.mean, "line": kit.line}
REQUESTS = ("load", *METHODS, "save")
LONGEST = 64 * 1024
"""Bytes of a file with predictions."""
LARGEST = 1e100
"""Of a number in a message: squares of such are still numbers."""


@dataclass(frozen=True)
class Mark:
    """One line of the log."""

    name: str
    """Of a milestone, or of what was begun."""
    cost: float | None
    """Units of the clock; None: a milestone."""


@dataclass
class ProgramRequests:
    """Requests of one run of a program."""

    table: Points
    costs: Mapping[str, float]
    log: list[Mark] = field(default_factory=list)
    loaded: bool = False
    saved: list[float] | None = None
    """What was handed in last."""

    def answer(self, message: bytes) -> bytes:
        """The answer to a message, whatever it holds."""
        try:
            found = json.loads(message, parse_constant=_refuse_constant)
            value = self._done(found if isinstance(found, dict) else {})
        except (ValueError, ArithmeticError, RecursionError) as error:
            return json.dumps({"error": str(error)[:200]}).encode()
        return json.dumps({"value": value}).encode()

    def reach(self, milestone: str) -> None:
        """Note a milestone that was verified."""
        self.log.append(Mark(milestone, None))

    def _done(self, request: dict[str, Any]) -> Any:
        """Do what is asked, with its price first. Raises ValueError, with words for the program."""
        what = request.get("do")
        does: dict[str, Callable[[dict[str, Any]], Any]] = {"load": self._load, "save": self._save}
        if what not in REQUESTS:
            raise ValueError(f"ask for one of {', '.join(REQUESTS)}")
        if what in self.costs:
            self.log.append(Mark(what, self.costs[what]))
        return does[what](request) if what in does else self._fit(METHODS[what], request)

    def _load(self, request: dict[str, Any]) -> bool:
        """Whether a name is one of the task's tables."""
        if request.get("table") == TRAIN:
            self.loaded = True
            self.reach(DATA)
        return request.get("table") in (TRAIN, TEST)

    def _fit(self, method: Callable[[kit.Table], tuple[float, float]], request: dict[str, Any]) -> list[float]:
        """A model of the training table, or of rows of one's own; those of the training table make the milestone."""
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

    def _save(self, request: dict[str, Any]) -> None:
        """Take predictions for the test's rows."""
        self.saved = _parse_numbers(request.get("numbers"), len(self.table) - GIVEN)
        self.reach(SAVED)


def parse_predictions(text: bytes, rows: int) -> list[float] | None:
    """The numbers in a file, one a line; None where it is not one finite number for each row."""
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
    """`count` finite numbers. Raises ValueError."""
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"{count} numbers are needed")
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in value):
        raise ValueError("that is no number")
    found = [float(one) if abs(one) <= LARGEST else math.inf for one in value]
    if not all(map(math.isfinite, found)):
        raise ValueError(f"numbers are finite and at most {LARGEST:g}")
    return found


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")
