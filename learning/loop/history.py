"""What a stage has seen of every problem so far; part of its checkpoints."""

from collections.abc import Iterable
from typing import Any

from learning.loop.trials import Trial, by_group


class History:
    """`rates`: for every problem, by id, the mean of the first reward at each visit (an iteration that sampled it)."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}

    def add(self, trials: Iterable[Trial]) -> None:
        """Add the policy's own trials of an iteration; those not ended, or that could not be scored, say nothing."""
        own = [t for t in trials if t.source == "policy" and t.finish != "suspended"]
        for group in by_group(own).values():
            scores = [s for t in group if (s := next(iter(t.scores.values()), None)) is not None]
            if scores:
                self.rates.setdefault(group[0].row["id"], []).append(sum(scores) / len(scores))

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"rates": self.rates}

    def load(self, values: dict[str, Any]) -> None:
        """Put back what `to_json` gave."""
        self.rates = {key: list(rates) for key, rates in values["rates"].items()}
