"""Call a reward so that a completion for which it raises loses its score, and the step goes on.

A reward is called with all completions at once. Only if that raises is it called with each alone, to find those for
which it raises: they cannot be scored (None), and it is called again with the others together. A reward that raises
for every completion is wrong itself, and the step fails. So is one that returns something else than one finite number
or None per completion.
"""

import math
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field
from inspect import iscoroutine
from pathlib import Path
from typing import Any, Protocol, TypedDict

from learning.lookup import Bound, Overlay, Supplies, asked_of
from learning.samples.sample import Row, Sample, States
from schemas.errors import PosttrainError, StepError

PER_COMPLETION = ("rows", "completions", "groups", "sources", "samples")
"""Supplies with one entry per completion."""
MESSAGE, SHOWN, TRACE = 300, 80, 4_000
"""Characters of an exception, of a completion and of a traceback that are shown."""
LARGEST = 10**60
"""Largest integer that is shown in digits."""
UNORDERED = (str, bytes, Mapping, Set)
"""Values that can be iterated over and are no list of scores: of a map, that gives its keys."""
FAILURES = (Exception, SystemExit)
"""A reward that calls `exit()` must not end the step either."""


class ScoredSamples(TypedDict):
    """What rewards may ask for of the completions that they score."""

    rows: list[Row]
    completions: list[str]
    groups: list[int]
    sources: list[str]
    samples: list[Sample]


@dataclass(frozen=True)
class Answered:
    """Scores of completions, None where one cannot be scored, and the exceptions of the reward, by place."""

    scores: list[float | None]
    failures: Mapping[int, str] = field(default_factory=dict)
    trace: str = ""
    """Traceback of its first exception."""


class PlacedReward(Protocol):
    """A reward that is computed in workers of its own."""

    @property
    def name(self) -> str:
        """Name in the recipe."""
        ...

    @property
    def asks(self) -> list[str]:
        """Names that it asks for."""
        ...

    @property
    def optional(self) -> bool:
        """Whether it is left out of the sum where it gives None."""
        ...

    def settled(self, controls: Mapping[str, float]) -> "PlacedReward":
        """Return the same with the numbers that controllers give."""
        ...

    def answered(self, step: int, supplies: Supplies) -> Answered:
        """Return what the function `answered` returns."""
        ...


def scores_of(reward: Bound | PlacedReward, step: int, supplies: Supplies, shown: dict[str, str]) -> list[float | None]:
    """Return one score per completion; None where the reward gives None or raises.

    The first failure of each reward is printed to the step's log and kept in `shown`, by the reward's name. Raise
    StepError when a reward gives another number of scores, a score that is no finite number, and when it raises for
    every one of several completions.
    """
    answer = answered(reward, step, supplies) if isinstance(reward, Bound) else reward.answered(step, supplies)
    if answer.failures:
        size, place = len(answer.scores), min(answer.failures)
        message, which = answer.failures[place], _describe_completion(supplies, place)
        if 1 < size == len(answer.failures):
            print(answer.trace, file=sys.stderr, flush=True)
            raise StepError(
                f"reward {reward.name}: it raises for every one of {size} completions, so the reward is wrong; "
                f"the first time {message}, for {which}"
            )
        if reward.name not in shown:
            shown[reward.name] = f"reward {reward.name} raises {message}, for {which}"
            more = f"reward {reward.name}: {len(answer.failures)} of {size} completions cannot be scored: {message}"
            print(f"{answer.trace}\n{more}, for {which}; further failures are not shown", file=sys.stderr, flush=True)
    return answer.scores


def sum_scores(scores: Sequence[float | None], factors: Sequence[float], may_lack: Sequence[bool]) -> float | None:
    """Return the weighted sum of a completion's scores; None if it is unscorable.

    It is if a score is None that may not be (`may_lack`), or if all scores are.
    """
    if any(score is None and not lacks for score, lacks in zip(scores, may_lack, strict=True)):
        return None
    if any(factors) and all(score is None for score in scores):
        return None
    return sum(factor * score for factor, score in zip(factors, scores, strict=True) if score is not None)


def answered(bound: Bound, step: int, supplies: Supplies) -> Answered:
    """Return scores and exceptions of a reward, as the module describes. Raise StepError as the reward does."""
    size = len(supplies["completions"])
    memory = _Memory(bound, supplies)
    try:
        return Answered(_call(bound, step, supplies, size))
    except FAILURES as error:
        _reraise_ours(error)
        trace = "".join(traceback.format_exception(error))[-TRACE:]
    failures = {i: message for i in range(size) if (message := _failure(bound, step, _select(supplies, [i]), memory))}
    rest = [i for i in range(size) if i not in failures]
    scores: list[float | None] = [None] * size
    memory.restore()
    try:
        rest_scores = _call(bound, step, _select(supplies, rest), len(rest)) if rest else []
        for i, score in zip(rest, rest_scores, strict=True):
            scores[i] = score
    except FAILURES as error:
        _reraise_ours(error)
        failures |= dict.fromkeys(rest, _message(error))
    return Answered(scores, failures, trace)


class _Memory:
    """A reward's state before a call that may fail."""

    def __init__(self, bound: Bound, supplies: Supplies) -> None:
        keeps = "state" in asked_of(bound) and "states" in supplies
        self.states: States = supplies["states"] if keeps else {}
        self.slot = bound.slot
        self.kept = {name: deepcopy(self.states[name]) for name in self._names()}

    def restore(self) -> None:
        """Restore the state of then."""
        for name in self._names():
            del self.states[name]
        self.states.update(deepcopy(self.kept))

    def _names(self) -> list[str]:
        """Return its own slot, and those of the rewards that its options name."""
        return [name for name in self.states if f"{name}.".startswith(f"{self.slot}.")]


def _failure(bound: Bound, step: int, supplies: Supplies, memory: _Memory) -> str:
    """Return what a reward raises for one completion; empty where it raises nothing."""
    memory.restore()
    try:
        _call(bound, step, supplies, 1)
    except PosttrainError:
        return ""  # about the row or the group: the call for the others raises it again
    except FAILURES as error:
        return _message(error)
    return ""


def _reraise_ours(error: BaseException) -> None:
    if isinstance(error, PosttrainError):
        raise error


def _call(bound: Bound, step: int, supplies: Supplies, size: int) -> list[float | None]:
    texts = supplies["completions"]
    rows = supplies["rows"] if "rows" in supplies else []  # noqa: SIM401 supplies have no `get`
    texts_before, rows_before = list(texts), [dict(row) for row in rows]
    returned = bound.ask(step, supplies)
    if list(texts) != texts_before:
        raise StepError(f"reward {bound.name}: it changes the list `completions`, which others read too; copy it first")
    if list(rows) != rows_before:
        raise StepError(f"reward {bound.name}: it changes `rows`, which others read too; copy a row first")
    if iscoroutine(returned):
        returned.close()
        raise StepError(f"reward {bound.name}: it is `async`, and is called as a plain function; remove `async`")
    if isinstance(returned, UNORDERED) or not isinstance(returned, Iterable):
        raise StepError(
            f"reward {bound.name}: it returns {_describe_value(returned)} instead of a score per completion"
        )
    scores = list(returned)
    if len(scores) != size:
        raise StepError(
            f"reward {bound.name}: {len(scores)} scores for {size} completions; return one per completion, None where "
            "there is none"
        )
    return [_read_score(bound, score, supplies, place) for place, score in enumerate(scores)]


def _read_score(bound: Bound, score: Any, supplies: Supplies, place: int) -> float | None:
    """Return a score as a number. Raise StepError for anything but None and finite numbers."""
    if score is None:
        return None
    try:
        number = math.nan if isinstance(score, str | bytes) else float(score)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise StepError(
            f"reward {bound.name}: its score is {_describe_value(score)}, for {_describe_completion(supplies, place)}; "
            "return a finite number, or None where there is no score"
        )
    return number


def _describe_value(value: object) -> str:
    """Return a value with its type, shortened."""
    shown = "a number beyond all limits" if isinstance(value, int) and abs(value) > LARGEST else repr(value)
    if " at 0x" in shown:  # the address differs from run to run
        return f"an object of {type(value).__name__}"
    return f"{shown if len(shown) <= SHOWN else shown[:SHOWN] + '...'} ({type(value).__name__})"


def _describe_completion(supplies: Supplies, place: int) -> str:
    """Return a completion, shortened, and the id of its row."""
    text, row = supplies["completions"][place], supplies["rows"][place] if "rows" in supplies else {}
    which = repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
    return f"the completion {which}" + (f" of row {row['id']!r}" if "id" in row else "")


def _select(supplies: Supplies, places: Sequence[int]) -> Supplies:
    """Return the supplies of some completions only."""
    cut = {name: [supplies[name][i] for i in places] for name in PER_COMPLETION if name in supplies}
    return Overlay(supplies, cut)


def _message(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (f" ({Path(f.filename).name}:{f.lineno})" for f in reversed(frames) if not _is_installed(f.filename)), ""
    )
    return f"{type(error).__name__}: {error}"[:MESSAGE] + place


def _is_installed(file: str) -> bool:
    """Return whether a file is of a library or of Python, and not of this repository or the user."""
    return "site-packages" in file or file.startswith((sys.base_prefix, "<"))
