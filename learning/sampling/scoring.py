"""One call of a reward: a completion that makes it raise costs that completion its score, not the step its life.

A reward is asked about all completions at once. Only if that raises is it asked about each alone, to find those that
make it raise: they cannot be scored (None), and it is asked once more about the others together. A reward that raises
for every completion is taken to be wrong itself.
"""

import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Protocol

from learning.lookup import Bound, asked_of
from schemas.errors import PosttrainError, StepError

PER_COMPLETION = ("rows", "completions", "groups", "sources", "samples")
"""What the loop gives with one entry for each completion."""
SAID, SHOWN, TRACE = 300, 80, 4_000
"""Characters of an exception, of a completion and of a traceback that are shown."""
FAILURES = (Exception, SystemExit)
"""`exit()` in what a reward calls must not end the step either."""

Have = Mapping[str, Any]


@dataclass(frozen=True)
class Answered:
    """Scores of completions, None where one cannot be scored, and what the reward raised, by place."""

    scores: list[float | None]
    failures: Mapping[int, str] = field(default_factory=dict)
    trace: str = ""
    """Traceback of what it raised first."""


class Placed(Protocol):
    """A reward that is asked elsewhere."""

    name: str

    def answered(self, step: int, have: Have) -> Answered:
        """As the function `answered`."""
        ...


def scores_of(reward: Bound | Placed, step: int, have: Have, shown: set[str]) -> list[float | None]:
    """One score for each completion, None where one cannot be scored: None, no finite number, or the reward raised.

    The first failure of a reward is written to the step's log, which `shown` remembers. Raises StepError when a reward
    gives another number of scores, and when it raises for every one of several completions.
    """
    found = answered(reward, step, have) if isinstance(reward, Bound) else reward.answered(step, have)
    if found.failures:
        size, place = len(found.scores), min(found.failures)
        said, text = found.failures[place], have["completions"][place]
        which = repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
        if 1 < size == len(found.failures):
            print(found.trace, file=sys.stderr, flush=True)
            raise StepError(
                f"reward {reward.name}: it raises for every one of {size} completions, so the reward is wrong; "
                f"the first time {said}, for the completion {which}"
            )
        if reward.name not in shown:
            shown.add(reward.name)
            more = f"reward {reward.name}: {len(found.failures)} of {size} completions cannot be scored: {said}, for "
            print(f"{found.trace}\n{more}{which}; further failures are not shown", file=sys.stderr, flush=True)
    return found.scores


def answered(bound: Bound, step: int, have: Have) -> Answered:
    """What a reward says of completions, and what it raised; see the module. Raises StepError as the reward does."""
    size = len(have["completions"])
    memory = _Memory(bound, have)
    try:
        return Answered(_asked(bound, step, have, size))
    except FAILURES as error:
        _let_through(error)
        trace = "".join(traceback.format_exception(error))[-TRACE:]
    failures = {i: said for i in range(size) if (said := _alone(bound, step, _cut(have, [i]), memory))}
    rest = [i for i in range(size) if i not in failures]
    scores: list[float | None] = [None] * size
    memory.restore()
    try:
        found = _asked(bound, step, _cut(have, rest), len(rest)) if rest else []
        for i, score in zip(rest, found, strict=True):
            scores[i] = score
    except FAILURES as error:
        _let_through(error)
        failures |= dict.fromkeys(rest, _said(error))
    return Answered(scores, failures, trace)


class _Memory:
    """What a reward keeps from call to call, as it was before one that may fail."""

    def __init__(self, bound: Bound, have: Have) -> None:
        self.states = have.get("states") if "state" in asked_of(bound) else None
        self.slot = bound.slot
        self.kept = {name: deepcopy(self.states[name]) for name in self._names()}

    def restore(self) -> None:
        """Forget what was noted since."""
        for name in self._names():
            del self.states[name]
        if self.states is not None:
            self.states.update(deepcopy(self.kept))

    def _names(self) -> list[str]:
        """Its own slot, and those of the rewards that its options name."""
        return [name for name in self.states or () if f"{name}.".startswith(f"{self.slot}.")]


def _alone(bound: Bound, step: int, have: Have, memory: _Memory) -> str:
    """What a reward raises for one completion; empty where it raises nothing."""
    memory.restore()
    try:
        _asked(bound, step, have, 1)
    except PosttrainError:
        return ""  # about the row or the group; raised again when the others are asked about
    except FAILURES as error:
        return _said(error)
    return ""


def _let_through(error: BaseException) -> None:
    if isinstance(error, PosttrainError):
        raise error


def _asked(bound: Bound, step: int, have: Have, size: int) -> list[float | None]:
    found = list(bound.ask(step, have))
    if len(found) != size:
        raise StepError(f"reward {bound.name}: {len(found)} scores for {size} completions")
    return [_number(score) for score in found]


def _number(score: Any) -> float | None:
    """A score as a number; None where it is none that can be computed with."""
    return float(score) if score is not None and math.isfinite(score) else None


def _cut(have: Have, places: Sequence[int]) -> dict[str, Any]:
    cut = {name: [have[name][i] for i in places] for name in PER_COMPLETION if name in have}
    return {**have, **cut}


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:SAID]
