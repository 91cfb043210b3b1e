"""Plots of outcomes as SVG: small texts without a library, equal data give equal bytes."""

import math
from collections.abc import Sequence
from html import escape

from schemas.pages.evidence import Evidence

COLOURS = {"reproduced": "#1a7f37", "level": "#6e7781", "no effect": "#bf8700", "refuted at this size": "#cf222e"}
WIDTH = 720
LEFT = 190
"""Where the axis begins, in pixels."""
RIGHT = 20
ROW = 22
TOP = 12
AXIS = 34
"""Height of the axis with its numbers."""


class Scale:
    """The places of values along a horizontal axis."""

    def __init__(self, values: Sequence[float]):
        low, high = min(values, default=0.0), max(values, default=1.0)
        pad = (high - low) * 0.05 or 0.05
        self.low, self.high = low - pad, high + pad

    def at(self, value: float) -> str:
        """Return the place of a value, in pixels."""
        share = (value - self.low) / (self.high - self.low)
        return f"{LEFT + share * (WIDTH - LEFT - RIGHT):.1f}"

    def list_ticks(self) -> list[float]:
        """Return three to seven round values within the scale."""
        raw = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


def draw_differences(results: Sequence[Evidence]) -> str:
    """Return the difference of every outcome with its interval, one per line, coloured by verdict."""
    scale = Scale([0.0, *(end for one in results for end in (one.low, one.high))])
    parts = []
    for place, one in enumerate(results):
        y, colour = TOP + ROW * place + ROW / 2, COLOURS[one.verdict]
        parts += [
            write_label(y, one.id),
            draw_line(scale.at(one.low), y, scale.at(one.high), y, colour, 2),
            draw_dot(scale.at(one.value), y, colour),
        ]
    return wrap(
        parts, scale, len(results), "difference, positive where the method is better (95 % interval)", zero=True
    )


def draw_seeds(one: Evidence) -> str:
    """Return what each seed reached: a line from the comparator (open) to the method (filled), and the start."""
    starts = [seed.start for seed in one.seeds if seed.start is not None]
    scale = Scale([*starts, *(value for seed in one.seeds for value in (seed.method, seed.against))])
    parts = []
    for place, seed in enumerate(one.seeds):
        y, colour = TOP + ROW * place + ROW / 2, COLOURS[one.verdict]
        parts += [write_label(y, f"seed {seed.seed}")]
        if seed.start is not None:
            x = scale.at(seed.start)
            parts.append(draw_line(x, y - 6, x, y + 6, "#6e7781", 1))
        parts += [
            draw_line(scale.at(seed.against), y, scale.at(seed.method), y, colour, 2),
            draw_dot(scale.at(seed.against), y, colour, filled=False),
            draw_dot(scale.at(seed.method), y, colour),
        ]
    outcome = one.outcome
    start = f"; | {outcome.start}" if outcome.start else ""
    title = f"{outcome.metric}: ● {outcome.method}, ○ {outcome.against}{start}"
    return wrap(parts, scale, len(one.seeds), title)


def wrap(parts: list[str], scale: Scale, rows: int, title: str, *, zero: bool = False) -> str:
    """Return the picture: axis, title and parts."""
    bottom = TOP + ROW * rows
    axis = [draw_line(scale.at(0), TOP, scale.at(0), bottom, "#d0d7de", 1)] if zero else []
    for value in scale.list_ticks():
        x = scale.at(value)
        axis += [
            draw_line(x, bottom, x, bottom + 4, "#6e7781", 1),
            f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{round(value, 6):g}</text>',
        ]
    axis.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{bottom + 29}" text-anchor="middle">{escape(title)}</text>')
    size = f'width="{WIDTH}" height="{bottom + AXIS}" viewBox="0 0 {WIDTH} {bottom + AXIS}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" fill="#57606a">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *axis, *parts, "</svg>"]) + "\n"


def write_label(y: float, text: str) -> str:
    """Return the name of a line."""
    return f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(text)}</text>'


def draw_line(x1: str, y1: float, x2: str, y2: float, colour: str, width: int) -> str:
    """Return a line."""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="{width}"/>'


def draw_dot(x: str, y: float, colour: str, *, filled: bool = True) -> str:
    """Return a dot."""
    return f'<circle cx="{x}" cy="{y}" r="4" stroke="{colour}" fill="{colour if filled else "white"}"/>'
