"""Numbers as texts for tables and pages."""

import math


def format_number(value: object) -> str:
    """Return four significant digits; integers and words as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an `s` unless there is one: `1 file`, `2 files`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def format_duration(seconds: float) -> str:
    """Return seconds, or minutes and hours for long durations."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_size(num_bytes: float) -> str:
    """Return bytes in the unit that fits."""
    if num_bytes < 1000:
        return f"{num_bytes:.0f} bytes"
    exponent = min(4, int(math.log10(num_bytes) // 3))
    return f"{num_bytes / 1000**exponent:.1f} {('kB', 'MB', 'GB', 'TB')[exponent - 1]}"
