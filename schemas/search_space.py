"""Settings that a search varies: their values, and how one of them is put into a stage."""

import copy
from typing import Self

from pydantic import Field, model_validator

from schemas.base import JsonObject, Schema

Value = bool | int | float | str


class Range(Schema):
    """Numbers between two bounds; whole numbers if both bounds are."""

    low: int | float
    """Smallest value."""
    high: int | float
    """Largest value."""
    log: bool = False
    """Whether the logarithm is spread evenly instead of the value."""
    step: int | float | None = Field(default=None, gt=0)
    """Distance of neighbouring values; null: 1 for whole numbers, any value for others."""

    @model_validator(mode="after")
    def require_order(self) -> Self:
        """Require bounds in order, and positive ones for logarithms."""
        if self.low >= self.high:
            raise ValueError("`low` must be less than `high`")
        if self.log and self.low <= 0:
            raise ValueError("with `log: true` the bounds must be positive")
        if self.log and self.step is not None:
            raise ValueError("give `log: true` or `step`")
        if is_whole(self) and isinstance(self.step, float):
            raise ValueError("`step` of whole numbers must be a whole number")
        return self


def is_whole(values: Range) -> bool:
    """Return whether the values are whole numbers: both bounds are."""
    return isinstance(values.low, int) and isinstance(values.high, int)


def replace_setting(settings: JsonObject, path: str, value: Value) -> JsonObject:
    """Return settings with the value at a dotted path replaced. Raise KeyError if there is none."""
    changed = copy.deepcopy(settings)
    place, (*above, last) = changed, path.split(".")
    for key in above:
        place = place[key] if isinstance(place, dict) else {}
    if not isinstance(place, dict) or last not in place:
        raise KeyError(path)
    place[last] = value
    return changed


def list_extremes(values: Range | list[Value]) -> list[Value]:
    """Return the values of a setting by which all of them are checked: the bounds, or the whole list."""
    return [values.low, values.high] if isinstance(values, Range) else values
