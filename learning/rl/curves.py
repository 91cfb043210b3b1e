"""Points of a training loop, averaged over the iterations between two lines of its curves."""

from collections.abc import Callable, Sequence
from typing import Any

OVER = {"generator_idle_share": "generator_seconds"}
"""Shares of a time, each with the point that says how long that was: their mean is over time, not over iterations."""


class Curves:
    """`lines` are those told so far; `last` are the points of the last iteration."""

    def __init__(self, tell: Callable[..., None], every: int, total: int) -> None:
        self.tell, self.every, self.total = tell, every, total
        self.lines: list[dict[str, float]] = []
        self.window: list[dict[str, float]] = []
        self.last: dict[str, float] = {}

    def add(self, step: int, points: dict[str, float]) -> None:
        """Add the points of an iteration (0-based); tell a line when one is due."""
        self.window, self.last = [*self.window, points], points
        if (step + 1) % self.every == 0 or step + 1 == self.total:
            self.close(step)

    def close(self, step: int) -> None:
        """Tell the line of the iterations since the last one, if there were any."""
        if not self.window:
            return
        keys = sorted({key for point in self.window for key in point})
        self.lines.append({"step": step + 1, **{key: mean(key, self.window) for key in keys}})
        self.window = []
        self.tell(**self.lines[-1])

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"lines": self.lines, "window": self.window, "last": self.last}

    def load(self, values: dict[str, Any]) -> None:
        """Put back what `to_json` gave, and tell its lines again."""
        self.lines, self.window, self.last = values["lines"], values["window"], values["last"]
        for line in self.lines:
            self.tell(**line)


def mean(key: str, points: Sequence[dict[str, float]]) -> float:
    """Mean of a point over those iterations that have it."""
    own = [point for point in points if key in point]
    weights = [point.get(OVER.get(key, ""), 1.0) for point in own]
    if not (total := sum(weights)):
        return sum(point[key] for point in own) / len(own)
    return sum(weight * point[key] for weight, point in zip(weights, own, strict=True)) / total
