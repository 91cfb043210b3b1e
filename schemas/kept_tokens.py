"""Which tokens a sampler keeps: top-k and top-p."""

from typing import Self

from pydantic import Field, model_validator

from schemas.base import Schema


class KeptTokens(Schema):
    """Tokens that are sampled from, at every place: the likeliest ones, after the temperature.

    With both, `top_p` cuts the distribution that `top_k` leaves. The probabilities of kept tokens add up to 1.
    """

    top_k: int | None = Field(default=None, ge=1)
    """Most tokens that are kept; null: all."""
    top_p: float | None = Field(default=None, gt=0, lt=1)
    """The fewest likeliest tokens whose probabilities reach this are kept (Holtzman et al. 2020); null: all."""

    @model_validator(mode="after")
    def require_limit(self) -> Self:
        """Require `top_k` or `top_p`."""
        if self.top_k is None and self.top_p is None:
            raise ValueError("give `top_k`, `top_p` or both; without it all tokens are kept")
        return self
