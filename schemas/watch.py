"""Watchdogs of a training loop: a band for a point of its curves, and what happens when it is left."""

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema


class Watch(Schema):
    """A point of the curves that must stay between two bounds.

    Points are those of `metrics.jsonl`: `kl_to_sampler`, `kl`, `entropy`, `completion_length`, `truncated`, `reward`,
    `grad_norm`, `logprob_gap`, `eval_reward`, and `reward_gap` (training reward minus held-out reward).
    """

    metric: str = Field(min_length=1)
    """Name of the point."""
    min: float | None = None
    """Smallest value allowed."""
    max: float | None = None
    """Largest value allowed."""
    patience: int = Field(default=1, ge=1)
    """Iterations in a row outside the band before anything happens."""
    action: Literal["stop", "roll_back", "warn"] = "stop"
    """`stop` ends the stage with the last good weights; `roll_back` goes on from them with a lower learning rate."""
    learning_rate_factor: float = Field(default=0.5, gt=0, lt=1)
    """What `roll_back` multiplies the learning rate by."""

    @model_validator(mode="after")
    def some_bound(self) -> Self:
        """A band without a bound is never left."""
        if self.min is None and self.max is None:
            raise ValueError("give `min` or `max`, or both")
        return self
