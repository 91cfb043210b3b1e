"""What a training of control reports while it runs."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from learning.models.checkpoint import Saved


class Reporter(Protocol):
    """Where metrics and progress go."""

    @property
    def spending(self) -> Saved:
        """Return what the step has spent; checkpoints keep it."""
        ...

    def log(self, step: int, **values: float) -> None:
        """Add a point to the curves."""
        ...

    def progress(self, step: int, total: int, **values: float) -> None:
        """Report how far the training is."""
        ...


@dataclass
class Window:
    """What happened since the last point of the curves."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, **values: float) -> None:
        """Add a value of each metric."""
        for name, value in values.items():
            self.values[name].append(value)

    def take(self) -> dict[str, float]:
        """Return the means, and begin again."""
        means = {name: sum(values) / len(values) for name, values in self.values.items()}
        self.values.clear()
        return means
