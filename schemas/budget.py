"""`budget:` of a recipe: what one run may cost, in core- and GPU-seconds, tokens and money."""

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema


class Prices(Schema):
    """What things cost, in one currency of your own; what has no price costs nothing here, and is not guessed."""

    core_hour: float | None = Field(default=None, ge=0)
    """One core held for an hour."""
    gpu_hour: float | None = Field(default=None, ge=0)
    """One GPU held for an hour."""
    million_tokens: float | None = Field(default=None, ge=0)
    """A million tokens sampled or trained on."""

    def money(self, core_seconds: float, gpu_seconds: float, tokens: int) -> float | None:
        """What that costs; None without any price."""
        parts = (
            (self.core_hour, core_seconds / 3600),
            (self.gpu_hour, gpu_seconds / 3600),
            (self.million_tokens, tokens / 1e6),
        )
        known = [price * amount for price, amount in parts if price is not None]
        return sum(known) if known else None


class Budget(Schema):
    """What one run may cost, its failed tries and its continuations included; nothing of it enters keys."""

    core_seconds: float | None = Field(default=None, gt=0)
    """Wall time of the steps times the cores they hold."""
    gpu_seconds: float | None = Field(default=None, gt=0)
    """Wall time of the steps times the GPUs they hold."""
    tokens: int | None = Field(default=None, gt=0)
    """Tokens sampled or trained on."""
    money: float | None = Field(default=None, gt=0)
    """By `prices`."""
    prices: Prices = Prices()
    """What core-hours, GPU-hours and tokens cost; without any, nothing is said about money."""
    on_exceed: Literal["stop", "warn"] = "stop"
    """`stop` ends the steps under way, which keep their checkpoints, and starts none; `warn` only says so."""

    @model_validator(mode="after")
    def money_has_prices(self) -> Self:
        """Money without prices would be a guess."""
        if self.money is not None and self.prices.money(0, 0, 0) is None:
            raise ValueError("`money` needs `prices`: give at least one of core_hour, gpu_hour, million_tokens")
        return self
