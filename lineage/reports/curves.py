"""Curves of a step from its metrics.jsonl, as small charts."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    band: str = ""
    """Path around the interval of the mean over several runs; empty for a single run."""


def read_curves(file: Path) -> list[Curve]:
    """Return charts of the series in a metrics file; empty if there is no file."""
    series = _read_series(file)
    return [_draw_curve(name, series[name]) for name in _order(series) if len(series[name]) > 1][:MOST]


def read_bands(files: Sequence[Path]) -> list[Curve]:
    """Return charts of the means over several runs with their 95 % intervals, at the steps that all of them have."""
    runs = [{name: dict(points) for name, points in _read_series(file).items()} for file in files]
    curves = []
    for name in _order({name: () for name in runs[0] if all(name in run for run in runs)}):
        steps = [step for step in runs[0][name] if all(step in run[name] for run in runs)]
        if len(steps) > 1:
            values = [[run[name][step] for run in runs] for step in steps]
            curves.append(_draw_band(name, steps, values))
    return curves[:MOST]


def _draw_band(name: str, steps: Sequence[float], values: Sequence[Sequence[float]]) -> Curve:
    """Return the mean of each step's values, and Student's interval around it."""
    from scipy.special import stdtrit

    means = [sum(of) / len(of) for of in values]
    deviations = [math.sqrt(sum((v - m) ** 2 for v in of) / (len(of) - 1)) for of, m in zip(values, means, strict=True)]
    half = [stdtrit(len(of) - 1, 0.975) * d / math.sqrt(len(of)) for of, d in zip(values, deviations, strict=True)]
    low, high = ([m + side * h for m, h in zip(means, half, strict=True)] for side in (-1, 1))
    return _draw_curve(name, list(zip(steps, means, strict=True)), (low, high))


def _order(series: Collection[str]) -> list[str]:
    """Return the names of series in the order of their charts."""
    return [*(name for name in FIRST if name in series), *sorted(set(series) - set(FIRST))]


def _read_series(file: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the points of every series in a metrics file; empty if there is no file."""
    series: dict[str, list[tuple[float, float]]] = {}
    if not file.is_file():
        return series
    for line in file.read_text().splitlines():
        point = json.loads(line)
        for name, value in point.items():
            if name not in AXES and isinstance(value, int | float) and math.isfinite(value):
                series.setdefault(name, []).append((point["step"], value))
    return series


def _draw_curve(
    name: str, points: list[tuple[float, float]], band: tuple[list[float], list[float]] = ([], [])
) -> Curve:
    """Average down to at most POINTS points and scale into the chart."""
    size = math.ceil(len(points) / POINTS)
    xs, ys = ([_mean([p[axis] for p in part]) for part in _split(points, size)] for axis in (0, 1))
    below, above = ([_mean(part) for part in _split(bound, size)] for bound in band)
    low, high = min(ys + below), max(ys + above)
    across, up = max(xs) - min(xs) or 1.0, high - low or 1.0

    def place_x(x: float) -> float:
        return round(LEFT + (x - min(xs)) / across * (WIDTH - LEFT - RIGHT), 1)

    def place_y(y: float) -> float:
        return round(HEIGHT - BOTTOM - (y - low) / up * (HEIGHT - TOP - BOTTOM), 1)

    def draw(xs: Sequence[float], ys: Sequence[float]) -> str:
        return "L".join(f"{place_x(x)} {place_y(y)}" for x, y in zip(xs, ys, strict=True))

    around = f"M{draw(xs, above)}L{draw(xs[::-1], below[::-1])}Z" if below else ""
    values = [low + (high - low) * i / (TICKS - 1) for i in range(TICKS)] if high > low else [low]
    steps = dict.fromkeys((points[0][0], points[-1][0]))
    ends = dict(zip(steps, (min(xs), max(xs)), strict=False))
    return Curve(
        name,
        f"M{draw(xs, ys)}",
        next((unit for end, unit in UNITS if name.partition("/")[0].endswith(end)), ""),
        tuple(Tick(place_x(ends[step]), step) for step in steps),
        tuple(Tick(place_y(value), value) for value in values),
        points[0][1],
        points[-1][1],
        around,
    )


def _split(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[i : i + size] for i in range(0, len(values), size)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
