"""`budget:` of a recipe: limits of one run in core-seconds, GPU-seconds, tokens and money."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from schemas.base import JsonObject, Schema
from schemas.endpoint import find_endpoints

MONEY_NEEDS_PRICES = (
    "`money` needs `prices`: give at least one of core_hour, gpu_hour, million_tokens, "
    "or set the `price` of an endpoint"
)


class Prices(Schema):
    """Prices in a currency of your choice; a resource without a price costs nothing."""

    core_hour: float | None = Field(default=None, ge=0)
    """Price of one core for an hour."""
    gpu_hour: float | None = Field(default=None, ge=0)
    """Price of one GPU for an hour."""
    million_tokens: float | None = Field(default=None, ge=0)
    """Price of a million tokens sampled or trained on, except those that a server charges for."""

    def money(self, core_seconds: float, gpu_seconds: float, tokens: int, paid: float = 0.0) -> float | None:
        """Return the cost, including the amount `paid` to servers, or None if nothing has a price."""
        parts = (
            (self.core_hour, core_seconds / 3600),
            (self.gpu_hour, gpu_seconds / 3600),
            (self.million_tokens, tokens / 1e6),
        )
        costs = [price * amount for price, amount in parts if price is not None]
        return sum(costs) + paid if costs or paid else None


class Budget(Schema):
    """Limits of one run, including its failed attempts and resumed parts; not part of any key."""

    core_seconds: float | None = Field(default=None, gt=0)
    """Most core-seconds: wall time of the steps times the cores they hold."""
    gpu_seconds: float | None = Field(default=None, gt=0)
    """Most GPU-seconds: wall time of the steps times the GPUs they hold."""
    tokens: int | None = Field(default=None, gt=0)
    """Most tokens sampled or trained on."""
    money: float | None = Field(default=None, gt=0)
    """Most cost, computed from `prices` and the prices of `endpoints`."""
    prices: Prices = Prices()
    """Prices of core-hours, GPU-hours and tokens; without any price, no cost in money is reported."""
    on_exceed: Literal["stop", "warn"] = "stop"
    """`stop`: running steps end, keeping their checkpoints, and no further step starts; `warn`: print a warning."""

    def lacks_prices(self, settings: Iterable[JsonObject]) -> bool:
        """Return whether money is limited while neither `prices` nor any endpoint has a price."""
        if self.money is None or self.prices.money(0, 0, 0) is not None:
            return False
        return not any(endpoint["price"] for stage in settings for endpoint in find_endpoints(stage))
