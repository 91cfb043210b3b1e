"""The block `critic:` of an rl stage: a value function learnt beside the policy, and which functions train it."""

from pydantic import Field

from schemas.base import Schema
from schemas.schedules import Number
from schemas.use import SelectUse, Use


class CriticLossUse(Use):
    """Per-token loss of a critic's value."""

    home = "learning.critic_losses"
    asks = frozenset({"value_T", "value_old_T", "return_T"})


class CombineUse(Use):
    """Makes one value of those of several heads."""

    home = "learning.critic_heads"
    takes = ("value_TH",)


class Critic(Schema):
    """A critic: the body of the starting policy with a value at every token, an optimiser and a rate of its own.

    Its targets come from the operation of `advantage` that reads its values (`gae`, `diff`).
    """

    learning_rate: Number | None = None
    """Rate of the critic's AdamW, or a schedule of it; null: the stage's. Decay, moments, clipping: the stage's."""
    warmup_steps: int = Field(default=0, ge=0)
    """First iterations in which only the critic learns."""
    loss: CriticLossUse = CriticLossUse(use="squared")
    """Per-token loss of its value."""
    heads: int = Field(default=1, ge=1)
    """Values per token, each trained on its own."""
    combine: CombineUse = CombineUse(use="mean")
    """The value that advantages see, from those of the heads."""
    select: list[SelectUse] = []
    """Which tokens train it; empty: all that were sampled."""
