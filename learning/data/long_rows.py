"""Rows of more tokens than a model takes: which parts of them are trained on, and how long rows are in all."""

from collections.abc import Sequence
from typing import Literal, TypedDict

import numpy as np

LongRows = Literal["drop", "truncate", "split"]


class LengthSummary(TypedDict):
    """Tokens per row before anything is cut, and how many rows are over the limit."""

    rows: int
    mean: float
    median: int
    p90: int
    p99: int
    longest: int
    limit: int
    over: int


def list_parts(learned: Sequence[bool], max_length: int, long_rows: LongRows) -> list[tuple[int, int]]:
    """Return the parts [start, end) of a row, each of at most `max_length` tokens; parts without a loss are left out.

    `truncate` keeps the first tokens. The parts of `split` overlap by one token: the first token of a sequence has no
    loss, so that each learned token of the row has one exactly once.
    """
    count = len(learned)
    if count <= max_length:
        return [(0, count)]
    if long_rows == "drop":
        return []
    starts = range(0, count - 1, max_length - 1) if long_rows == "split" else (0,)
    parts = [(start, min(start + max_length, count)) for start in starts]
    return [(start, end) for start, end in parts if any(learned[start + 1 : end])]


def summarise_lengths(lengths: np.ndarray, limit: int) -> LengthSummary:
    """Return quantiles of the tokens per row (each the length of some row), and the number of rows over `limit`."""
    median, p90, p99, longest = np.quantile(lengths, [0.5, 0.9, 0.99, 1.0], method="higher").tolist()
    return {
        "rows": len(lengths),
        "mean": float(lengths.mean()),
        "median": median,
        "p90": p90,
        "p99": p99,
        "longest": longest,
        "limit": limit,
        "over": int((lengths > limit).sum()),
    }


def describe_lengths(summary: LengthSummary) -> str:
    """Return one line about the lengths of rows."""
    share = summary["over"] / summary["rows"]
    return (
        f"{summary['rows']:,} rows, tokens per row: median {summary['median']:,}, 90 % up to {summary['p90']:,}, "
        f"99 % up to {summary['p99']:,}, longest {summary['longest']:,}; "
        f"{summary['over']:,} ({share:.1%}) are over {summary['limit']:,}"
    )
