"""What the process of a step is given, and what it reports while it works."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lineage.layout import Layout
from schemas.plan import Step

TaskReport = Mapping[str, float | None]
"""One report of a task: numbers by name; `step`, `total`, `spent`, `paid`, `started` and `waiting` have a meaning."""


@dataclass(frozen=True)
class MadeInput:
    """An input that another step of the plan made."""

    kind: str
    key: str
    output: str
    step: str
    """Name of the step that made it."""


@dataclass(frozen=True)
class StepSpec:
    """One attempt at a step, as it is sent to the process that runs it."""

    root: Path
    """The checkout."""
    run: str
    recipe: str
    folders: tuple[Path, ...]
    """Where modules and sources of the user are looked for."""
    attempt: str
    """Distinguishes the progress files of attempts."""
    step: Step
    inputs: Mapping[str, MadeInput]
    """Port to what another step made; inputs from outside are named by the step itself."""
    own_process: bool = False
    """Whether the step has a process of its own, so that all output of the process is the step's."""

    @property
    def layout(self) -> Layout:
        """Return the layout of the checkout."""
        return Layout(self.root)

    @property
    def work(self) -> Path:
        """Return the folder in which the step works until it is published."""
        return self.layout.work(self.step.key)


@dataclass(frozen=True)
class StepFailure:
    """The error of a step, as a worker process returns it: text travels between processes, exceptions may not."""

    message: str
