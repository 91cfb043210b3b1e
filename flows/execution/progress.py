"""The progress of a run in the terminal: a live table, or plain lines where there is no terminal."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flows.execution.events import Event, ProgressEvent, StepEvent
from flows.execution.results import is_number
from flows.execution.states import STYLES
from schemas.plan import Plan

FIGURES = ("reward", "loss", "accuracy")
"""The figure that is shown is the first of these that a step reports."""
LINE_EVERY = 10.0
"""Seconds between plain lines of one running step."""


@dataclass
class Row:
    """One row of the table: the progress of one step."""

    state: str = "queued"
    reason: str = ""
    at: int = 0
    total: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    started: float | None = None
    ended: float | None = None
    first: tuple[int, float] | None = None
    """Step and time of the first progress of this attempt: a resumed step does not begin at 0."""
    printed: float = float("-inf")
    """When the last plain line was printed."""


class TerminalReporter:
    """Shows the events of a run; used as a context manager around the run.

    `clock` returns seconds; tests pass their own.
    """

    def __init__(self, plan: Plan, console: Console, clock: Callable[[], float] = time.monotonic):
        self.rows = {step.name: Row() for step in plan.steps}
        self.console, self.clock = console, clock
        self.lock = threading.Lock()
        drawn = console.is_terminal
        self.live = Live(get_renderable=self.table, console=console, refresh_per_second=4) if drawn else None

    def __enter__(self) -> "TerminalReporter":
        """Start drawing."""
        if self.live:
            self.live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the last state on the screen."""
        if self.live:
            self.live.stop()

    def report(self, event: Event) -> None:
        """Take in one event; types other than step, progress and retry are not shown."""
        if event["type"] == "run" or (row := self.rows.get(event["step"])) is None:
            return
        with self.lock:
            if event["type"] == "step":
                self._show_state(row, event)
            elif event["type"] == "progress":
                self._show_progress(row, event)
            elif event["type"] == "retry":
                row.reason, row.first, row.at = f"try {event['attempt']}: {event['reason']}", None, 0
                self._print(f"{event['step']}: {row.reason}")

    def _show_state(self, row: Row, event: StepEvent) -> None:
        now, before = self.clock(), row.state
        row.state, row.reason = event["state"], event.get("reason", "")
        if row.state == "running":
            row.started, row.first = row.started if row.started is not None else now, None
        elif row.state != "queued":
            row.ended = now
            row.values |= {k: v for k, v in event.get("metrics", {}).items() if k in FIGURES and is_number(v)}
        row.reason = "; ".join(part for part in (row.reason, event.get("gates", "")) if part)
        if row.state != before:
            took = f" in {format_clock(elapsed)}" if row.state == "done" and (elapsed := self._elapsed(row)) else ""
            self._print(f"{event['step']}: {row.state}{took}" + (f" ({row.reason})" if row.reason else ""))

    def _show_progress(self, row: Row, event: ProgressEvent) -> None:
        now = self.clock()
        row.at, row.total = int(event.get("at") or row.at), event.get("total", row.total)
        row.values |= extract_figures(event)
        row.first = row.first or (row.at, now)
        row.started = row.started if row.started is not None else now
        if now - row.printed >= LINE_EVERY:
            row.printed = now
            shown = [
                _format_steps(row),
                *_format_figure(row),
                _format_speed(row),
                f"{left} left" if (left := self._left(row)) else "",
            ]
            self._print(f"{event['step']}: " + ", ".join(text for text in shown if text))

    def _print(self, line: str) -> None:
        if not self.live:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def table(self) -> Table:
        """Return the live table as it is now."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("stage", "state"):
            table.add_column(title, no_wrap=True)
        for title in ("step", "reward or loss", "tokens/s", "left", "elapsed"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("", overflow="ellipsis", no_wrap=True, ratio=1)
        with self.lock:
            for name, row in self.rows.items():
                figure = next(iter(_format_figure(row)), "")
                speed = _format_speed(row).removesuffix(" tokens/s") if row.state == "running" else ""
                elapsed = format_clock(self._elapsed(row)) if row.started is not None else ""
                left = self._left(row) if row.state == "running" else ""
                cells = (_format_steps(row), figure, speed, left, elapsed)
                state = Text(row.state, STYLES.get(row.state, ""))
                table.add_row(Text(name), state, *cells, Text(row.reason, "dim"))
        return table

    def _elapsed(self, row: Row) -> float:
        if row.started is None:
            return 0.0
        return (row.ended if row.ended is not None else self.clock()) - row.started

    def _left(self, row: Row) -> str:
        """Return the time to the end at the speed since the first progress; empty while unknown."""
        if row.first is None or row.total is None or row.at <= row.first[0]:
            return ""
        per_step = (self.clock() - row.first[1]) / (row.at - row.first[0])
        return format_clock(per_step * max(0, row.total - row.at))


def format_clock(seconds: float) -> str:
    """Return seconds as 0:07, 12:03 or 1:02:03."""
    total = int(seconds + 0.5)
    hours, minutes = total // 3600, total % 3600 // 60
    return f"{hours}:{minutes:02d}:{total % 60:02d}" if hours else f"{minutes}:{total % 60:02d}"


def _format_steps(row: Row) -> str:
    if row.total is None:
        return str(row.at) if row.at else ""
    return f"{row.at}/{row.total}"


def _format_figure(row: Row) -> list[str]:
    return [f"{name} {row.values[name]:.4g}" for name in FIGURES if name in row.values][:1]


def _format_speed(row: Row) -> str:
    speed = row.values.get("tokens_per_second")
    return f"{speed:,.0f} tokens/s" if speed is not None else ""


def extract_figures(event: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers that a step reports with its progress, by name."""
    return {
        name: value for name, value in event.items() if name not in ("type", "step", "at", "total") and is_number(value)
    }
