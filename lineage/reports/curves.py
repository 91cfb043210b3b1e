"""Curves of a step from its metrics.jsonl, as small charts."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

FIRST = ("reward", "loss", "entropy", "accuracy", "kl", "learning_rate")
"""Series whose charts come first, in this order; the others follow by name."""
AXES = frozenset({"step", "time"})
MOST = 60
"""Most charts of a step."""
WIDTH, HEIGHT, PAD = 260, 96, 6
POINTS = 240


@dataclass(frozen=True)
class Curve:
    """One series: the chart's path, its range, and where it began and ended."""

    name: str
    path: str
    low: float
    high: float
    first: float
    last: float
    first_step: float
    last_step: float


def read_curves(file: Path) -> list[Curve]:
    """Return charts of the series in a metrics file; empty if there is no file."""
    if not file.is_file():
        return []
    series: dict[str, list[tuple[float, float]]] = {}
    for line in file.read_text().splitlines():
        point = json.loads(line)
        for name, value in point.items():
            if name not in AXES and isinstance(value, int | float) and math.isfinite(value):
                series.setdefault(name, []).append((point["step"], value))
    names = [*(name for name in FIRST if name in series), *sorted(series.keys() - set(FIRST))]
    return [_draw_curve(name, series[name]) for name in names if len(series[name]) > 1][:MOST]


def _draw_curve(name: str, points: list[tuple[float, float]]) -> Curve:
    """Average down to at most POINTS points and scale into the chart."""
    size = math.ceil(len(points) / POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    means = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
    xs, ys = [x for x, _ in means], [y for _, y in means]
    low, high = min(ys), max(ys)
    across, up = max(xs) - min(xs) or 1.0, high - low or 1.0
    places = [
        (PAD + (x - min(xs)) / across * (WIDTH - 2 * PAD), HEIGHT - PAD - (y - low) / up * (HEIGHT - 2 * PAD))
        for x, y in means
    ]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return Curve(name, path, low, high, points[0][1], points[-1][1], points[0][0], points[-1][0])
