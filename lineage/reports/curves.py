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
WIDTH, HEIGHT = 320, 140
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 8, 32
"""Pixels between the chart's border and its axes: room for the numbers at the ticks."""
TICKS = 3
"""Ticks of the vertical axis."""
POINTS = 240
UNITS = (
    ("_per_second", "1/s"),
    ("seconds", "s"),
    ("entropy", "nats"),
    ("kl", "nats"),
    ("length", "tokens"),
    ("memory", "bytes"),
)
"""Ends of the names of series to their units; other series are ratios, or in a unit of the recipe."""


@dataclass(frozen=True)
class Tick:
    """A place on an axis, in pixels, and the number there."""

    at: float
    value: float


@dataclass(frozen=True)
class Curve:
    """One series: the chart's path and axes, and the values with which it began and ended."""

    name: str
    path: str
    unit: str
    """Unit of the values; empty for ratios and for what has a unit of the recipe."""
    across: tuple[Tick, ...]
    """Ticks of the horizontal axis, whose unit is the step."""
    up: tuple[Tick, ...]
    first: float
    last: float


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

    def place_x(x: float) -> float:
        return round(LEFT + (x - min(xs)) / across * (WIDTH - LEFT - RIGHT), 1)

    def place_y(y: float) -> float:
        return round(HEIGHT - BOTTOM - (y - low) / up * (HEIGHT - TOP - BOTTOM), 1)

    path = "M" + "L".join(f"{place_x(x)} {place_y(y)}" for x, y in means)
    values = [low + (high - low) * i / (TICKS - 1) for i in range(TICKS)] if high > low else [low]
    steps = dict.fromkeys((points[0][0], points[-1][0]))
    ends = dict(zip(steps, (min(xs), max(xs)), strict=False))
    return Curve(
        name,
        path,
        next((unit for end, unit in UNITS if name.partition("/")[0].endswith(end)), ""),
        tuple(Tick(place_x(ends[step]), step) for step in steps),
        tuple(Tick(place_y(value), value) for value in values),
        points[0][1],
        points[-1][1],
    )
