"""Number schedules: numbers that may change while a stage trains.

For an option of type `Number`, a recipe gives a constant or a schedule:
`{linear: {from: 0.2, to: 0.0, steps: 100}}`, `{cosine: {...}}` or `{piecewise: {0: 1.0, 50: 0.5}}`; in an rl stage also
`{controller: name}`, the number that the controller of that name computes.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from schemas.base import Schema
from schemas.errors import StepError


class Ramp(Schema):
    """A change from one value to another over a number of steps, constant afterwards."""

    from_: float = Field(alias="from")
    to: float
    steps: int = Field(ge=1)


class Linear(Schema):
    """Linear interpolation."""

    linear: Ramp

    def at(self, step: int) -> float:
        """Return the value at `step` (0-based)."""
        share = min(step / self.linear.steps, 1.0)
        return self.linear.from_ + share * (self.linear.to - self.linear.from_)


class Cosine(Schema):
    """Cosine interpolation (half a wave)."""

    cosine: Ramp

    def at(self, step: int) -> float:
        """Return the value at `step` (0-based)."""
        share = (1 - math.cos(math.pi * min(step / self.cosine.steps, 1.0))) / 2
        return self.cosine.from_ + share * (self.cosine.to - self.cosine.from_)


class Piecewise(Schema):
    """Constant between the named steps; the first must be 0."""

    piecewise: dict[int, float] = Field(min_length=1)

    @field_validator("piecewise")
    @classmethod
    def require_step_0(cls, value: dict[int, float]) -> dict[int, float]:
        """Require a value for step 0."""
        if min(value) != 0:
            raise ValueError("the first step of a piecewise schedule must be 0")
        return value

    def at(self, step: int) -> float:
        """Return the value at `step` (0-based)."""
        return self.piecewise[max(k for k in self.piecewise if k <= step)]


class Controlled(Schema):
    """The number that a controller of the stage computes."""

    controller: str = Field(min_length=1)


Number = float | Linear | Cosine | Piecewise | Controlled
if TYPE_CHECKING:
    ScheduledFloat = float
else:
    ScheduledFloat = Number
"""An option of a slot's function: a recipe may write a schedule, and the function receives the step's number."""
SCHEDULES = (Linear, Cosine, Piecewise)


def value_at(number: Number, step: int) -> float:
    """Return the value of a constant or schedule at a step (0-based); raise StepError for an unknown controller."""
    if isinstance(number, Controlled):
        raise StepError(
            f"no controller `{number.controller}` in this stage; add it to the `controllers` of an rl stage"
        )
    return number if isinstance(number, int | float) else number.at(step)


def settle(value: Any, controls: Mapping[str, float]) -> Any:
    """Return the controller's value for a reference to a known controller, and any other value unchanged."""
    is_known = isinstance(value, Controlled) and value.controller in controls
    return controls[value.controller] if is_known else value


def list_values(number: float | Linear | Cosine | Piecewise) -> list[float]:
    """Return the values that a constant or schedule goes through, in the order of steps: its ends and its pieces."""
    if isinstance(number, Piecewise):
        return [value for _, value in sorted(number.piecewise.items())]
    if isinstance(number, Linear | Cosine):
        ramp = number.linear if isinstance(number, Linear) else number.cosine
        return [ramp.from_, ramp.to]
    return [number]
