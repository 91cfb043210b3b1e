"""`budget:` of a recipe: what one run may cost, in core- and GPU-seconds, tokens and money."""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from schemas.base import Schema
from schemas.endpoint import find_endpoints

MONEY_NEEDS_PRICES = (
    "`money` needs `prices`: give at least one of core_hour, gpu_hour, million_tokens, or an endpoint its `price`"
)


class Prices(Schema):
    """What things cost, in one currency of your own; what has no price costs nothing here, and is not guessed."""

    core_hour: float | None = Field(default=None, ge=0)
    """One core held for an hour."""
    gpu_hour: float | None = Field(default=None, ge=0)
    """One GPU held for an hour."""
    million_tokens: float | None = Field(default=None, ge=0)
    """A million tokens sampled or trained on, without those that a server charges for."""

    def money(self, core_seconds: float, gpu_seconds: float, tokens: int, paid: float = 0.0) -> float | None:
        """Return the cost in money, together with what was `paid` to servers, or None without any price."""
        parts = (
            (self.core_hour, core_seconds / 3600),
            (self.gpu_hour, gpu_seconds / 3600),
            (self.million_tokens, tokens / 1e6),
        )
        known = [price * amount for price, amount in parts if price is not None]
        return sum(known) + paid if known or paid else None


class Budget(Schema):
    """What one run may cost, its failed tries and its continuations included; nothing of it enters keys."""

    core_seconds: float | None = Field(default=None, gt=0)
    """Wall time of the steps times the cores they hold."""
    gpu_seconds: float | None = Field(default=None, gt=0)
    """Wall time of the steps times the GPUs they hold."""
    tokens: int | None = Field(default=None, gt=0)
    """Tokens sampled or trained on."""
    money: float | None = Field(default=None, gt=0)
    """By `prices`, and by those of `endpoints`."""
    prices: Prices = Prices()
    """What core-hours, GPU-hours and tokens cost; without any, nothing is said about money."""
    on_exceed: Literal["stop", "warn"] = "stop"
    """`stop` ends the steps under way, which keep their checkpoints, and starts none; `warn` only says so."""

    def lacks_prices(self, settings: Iterable[Any]) -> bool:
        """Return whether money is limited while neither `prices` nor any endpoint has a price."""
        if self.money is None or self.prices.money(0, 0, 0) is not None:
            return False
        return not any(endpoint["price"] for stage in settings for endpoint in find_endpoints(stage))
