"""The specification that a step's process receives, and the reports that it sends."""

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
    """Root folder of the checkout."""
    run: str
    recipe: str
    folders: tuple[Path, ...]
    """Folders in which the user's modules and sources are searched."""
    attempt: str
    """Distinguishes the progress files of attempts."""
    step: Step
    inputs: Mapping[str, MadeInput]
    """Port to the artifact of another step; outside inputs are named in the step."""
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
