"""Events of a run, as reporters receive them and `events.jsonl` keeps them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NotRequired, Protocol, TypedDict

if TYPE_CHECKING:
    from lineage.audit.log import Anchor

State = Literal["queued", "running", "cached", "done", "failed", "skipped", "blocked", "cancelled", "waiting"]


class StepEvent(TypedDict):
    """A step has another state."""

    type: Literal["step"]
    step: str
    state: State
    seconds: NotRequired[float]
    reason: NotRequired[str]
    key: NotRequired[str]
    kind: NotRequired[str]
    metrics: NotRequired[Mapping[str, float | int | bool | str | None]]
    gate: NotRequired[str]
    gates: NotRequired[str]


class ProgressEvent(TypedDict):
    """The progress of a running step, with the step's figures by name."""

    type: Literal["progress"]
    step: str
    at: float | None
    total: NotRequired[float]


class LogEvent(TypedDict):
    """A line of a step's log."""

    type: Literal["log"]
    step: str
    line: str


class RetryEvent(TypedDict):
    """A step failed and is tried again."""

    type: Literal["retry"]
    step: str
    attempt: int
    reason: str


class RunEvent(TypedDict):
    """A run has started or ended."""

    type: Literal["run"]
    run: str
    state: Literal["started", "ended"]
    recipe: NotRequired[str]
    steps: NotRequired[int]
    exit_code: NotRequired[int]
    recipe_commit: NotRequired[str]
    """Commit of the repository of the recipe's folder."""
    recipe_dirty: NotRequired[bool]
    audit: NotRequired["Anchor"]
    """Anchor of the audit log at that time."""


Event = StepEvent | ProgressEvent | LogEvent | RetryEvent | RunEvent


class RecordedStep(StepEvent):
    """A step's event, read from the log of a run."""

    time: float


class Reporter(Protocol):
    """Receives the events of a run, from several threads."""

    def report(self, event: Event) -> None:
        """Take in one event."""
