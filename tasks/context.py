"""What a task receives: its inputs, where to write, its seed, and how to report progress."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.base import JsonObject
from schemas.errors import StepError

if TYPE_CHECKING:
    from learning.parallel.actors import Actors
    from learning.parallel.group import Group


Metric = float | int | bool | str | None
Event = JsonObject
"""What a step reports while it runs: metrics, progress (`step`, `total`) or tokens (`spent`, `paid`)."""


@dataclass(frozen=True)
class Result:
    """Result of `run`: `metrics` are final numbers (gates and loops read them), `details` are for reports."""

    metrics: Mapping[str, Metric] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    notices: Sequence[str] = ()
    """What a user should know of the result, a sentence each: dropped rows, completions without a score, … The run
    prints them, and the report shows them."""


@dataclass(frozen=True)
class Amounts:
    """What was spent: time, tokens sampled or trained on, and what servers charged for some of them."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    tokens: int = 0
    paid: float = 0.0
    paid_tokens: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(*(one + two for one, two in zip(asdict(self).values(), asdict(other).values(), strict=True)))


@dataclass
class Spending:
    """What a step has spent on its artifact: this attempt, and earlier ones up to the checkpoint it continued from.

    What earlier attempts lost, because no checkpoint followed, is not part of it; the run counts that as well.
    """

    measure_cpu: Callable[[], float] = time.process_time
    """Returns the seconds of processor time of this attempt."""
    started: float = field(default_factory=time.monotonic)
    tokens: int = 0
    """Sampled or trained on by this attempt."""
    checkpoint: Amounts = field(default_factory=Amounts)
    """Of earlier attempts, up to the checkpoint that this one continued from."""
    served: Amounts = field(default_factory=Amounts)
    """What servers answered to this attempt."""
    served_before: Amounts = field(default_factory=Amounts)
    """What they answered to earlier attempts: no answer is lost, with or without a checkpoint."""

    @property
    def earlier(self) -> Amounts:
        """Return the part of earlier attempts."""
        return self.checkpoint + self.served_before

    def total(self) -> Amounts:
        """Return the sum of all attempts."""
        return self.earlier + self.measure() + self.served

    def measure(self) -> Amounts:
        """Return time and tokens of this attempt, without what servers answered."""
        return Amounts(time.monotonic() - self.started, self.measure_cpu(), self.tokens)

    def to_json(self) -> dict[str, float]:
        """Return what a checkpoint keeps; servers' answers are counted where they are stored."""
        return asdict(self.checkpoint + self.measure())

    def load(self, values: Mapping[str, float]) -> None:
        """Restore what `to_json` returned in an earlier attempt."""
        self.checkpoint = Amounts(
            values["seconds"], values["cpu_seconds"], int(values["tokens"]), values["paid"], int(values["paid_tokens"])
        )


@dataclass(frozen=True)
class Context:
    """One execution of a step.

    `folder` is the unpublished artifact: outputs go to `folder/outputs/<name>`, curves to `folder/metrics.jsonl`.
    `checkpoints` belongs to the step's key and survives a kill; only attempts of the same key write there.
    """

    inputs: Mapping[str, Path]
    folder: Path
    checkpoints: Path
    seed: int
    num_threads: int = 1
    device: str = "cpu"
    on_progress: Callable[[Event], None] = lambda event: None
    group: "Group | None" = None
    """The training group of the step; None: this process alone."""
    actors: "Actors | None" = None
    """Workers of the roles that have their own processes; None: everything runs in this process."""
    key: str = ""
    """Key of the step."""
    remote: Path | None = None
    """Folder of remote models' responses, shared by all steps of a checkout; None: one next to `checkpoints`."""
    redact: Callable[[Event], Event] = lambda values: values
    """Removes secrets of the settings from names and values of curves."""
    spending: Spending = field(default_factory=Spending)
    """What the step has spent; a task whose checkpoints continue keeps it in them."""

    def input(self, port: str) -> Path:
        """Return the folder of the artifact that the port received, by the dotted path of the field."""
        if port not in self.inputs:
            raise StepError(f"no input {port!r}; this step has: {', '.join(sorted(self.inputs)) or 'none'}")
        return self.inputs[port]

    def output(self, name: str) -> Path:
        """Return the folder of a named output, created."""
        path = self.folder / "outputs" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, step: int, **values: float) -> None:
        """Add one point to the curves, a line of JSON; `time` is in seconds since the epoch."""
        line = json.dumps({"step": step, "time": time.time(), **self.redact(values)}) + "\n"
        handle = os.open(self.folder / "metrics.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        self.on_progress({"step": step, **values})

    def spend(self, tokens: int) -> None:
        """Report further tokens, sampled or trained on; they count against the recipe's budget."""
        self.spending.tokens += tokens
        self.on_progress({"spent": tokens})

    def recall(self, tokens: int) -> None:
        """Count tokens that an earlier attempt has reported, and whose rows this one takes from a journal."""
        self.spending.checkpoint += Amounts(tokens=tokens)

    def spend_served(self, tokens: int, paid: float | None = None) -> None:
        """Report further tokens of servers' answers; `paid` is what a server charged for them, None if none did."""
        charged = {} if paid is None else {"paid": paid, "paid_tokens": tokens}
        self.spending.served += Amounts(tokens=tokens, paid=paid or 0.0, paid_tokens=charged.get("paid_tokens", 0))
        self.on_progress({"spent": tokens, **charged})

    def progress(self, step: int, total: int, **values: float) -> None:
        """Report how far the step is, without adding to the curves."""
        self.on_progress({"step": step, "total": total, **values})
