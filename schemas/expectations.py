"""What a stage expects of its rows: `{rows: ">= 1000", "null(prompt)": 0, "mean(len(completion))": "> 20"}`."""

import re
from dataclasses import dataclass
from typing import Literal, cast

from pydantic import Field, field_validator

from schemas.base import Schema

Function = Literal["rows", "null", "unique", "mean", "min", "max"]
Comparison = Literal["==", "!=", ">=", "<=", ">", "<"]
TEXTS = ("id", "answer", "family", "metadata", "source")
"""Columns that hold text."""
CONVERSATIONS = ("prompt", "completion", "chosen", "rejected")
"""Columns that hold messages."""
NUMBERS = ("margin",)
"""Columns that hold numbers."""
COLUMNS = (*TEXTS, *CONVERSATIONS, *NUMBERS)
MEASURE = re.compile(r"(null|unique|mean|min|max)\(\s*(?:(len)\(\s*(\w+)\s*\)|(\w+))\s*\)")
BOUND = re.compile(r"(==|!=|>=|<=|>|<)\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True)
class Measure:
    """A number of a table of rows: `mean(len(completion))`."""

    function: Function
    column: str = ""
    of_length: bool = False
    """Whether it is of the characters of the column."""


@dataclass(frozen=True)
class Bound:
    """What a number is compared with."""

    comparison: Comparison
    number: float


def parse_measure(text: str) -> Measure:
    """Return what an expectation measures. Raise ValueError with the measures that there are."""
    if text.strip() == "rows":
        return Measure("rows")
    match = MEASURE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"`{text}` is no measure; there are `rows`, `null(COLUMN)`, `unique(COLUMN)`, and `mean`, `min` and `max` "
            "of `len(COLUMN)`, in characters, or of `margin`"
        )
    function, column, of_length = match[1], match[3] or match[4], match[2] is not None
    if column not in COLUMNS:
        raise ValueError(f"`{text}`: no column `{column}`; columns are {', '.join(COLUMNS)}")
    if function in ("null", "unique") and of_length:
        raise ValueError(f"`{text}`: write `{function}({column})`")
    if function not in ("null", "unique") and of_length == (column in NUMBERS):
        advice = f"{function}({column})" if of_length else f"{function}(len({column}))"
        raise ValueError(f"`{text}`: write `{advice}`")
    return Measure(cast(Function, function), column, of_length)


def parse_bound(value: float | str) -> Bound:
    """Return what a number is compared with: the number alone, or a comparison. Raise ValueError."""
    if isinstance(value, int | float):
        return Bound("==", float(value))
    match = BOUND.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"`{value}` is neither a number nor a comparison such as `>= 1000`")
    return Bound(cast(Comparison, match[1]), float(match[2]))


class Expectations(Schema):
    """Numbers of the rows that a step makes; the step fails if one is not as expected."""

    expect: dict[str, float | str] = Field(default={})
    """Measure of the rows that are written to its number or a comparison: `rows`, `null(prompt)` (rows without it),
    `unique(id)` (values that differ, as a share of the rows), `mean(len(completion))` (characters), `min(margin)`. The
    step fails if one does not hold."""

    @field_validator("expect")
    @classmethod
    def refuse_unknown_measures(cls, expect: dict[str, float | str]) -> dict[str, float | str]:
        """Refuse what is no measure or no comparison."""
        for name, value in expect.items():
            parse_measure(name)
            parse_bound(value)
        return expect
