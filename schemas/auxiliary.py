"""Networks learnt beside the policy of an rl stage: what each predicts, from what, and which functions train it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema
from schemas.references import NetworkRef
from schemas.schedules import Number
from schemas.use import FIXED, PATHS, TokenMaskUse, Use

NEXT = ("next_T", "next_mean_T")
"""What a slow copy says of the state after each token; for actions the best of them, and their mean."""
FROZEN = ("learning_rate", "warmup_steps", "loss", "token_mask", "target_network")
"""Keys that mean nothing where nothing is learnt."""


class CriticLossUse(Use):
    """Loss of each value, per token (per completion for the heads `path` and `likelihood`)."""

    home = "learning.algorithm.critic_losses"
    asks = frozenset({"value_T", "value_old_T", "return_T"})


class CombineUse(Use):
    """Makes one value of those of several heads."""

    home = "learning.algorithm.critic_heads"
    takes = ("value_TH",)


class TargetUse(Use):
    """What an auxiliary is to predict at every sampled token; NaN: this token says nothing."""

    home = "learning.algorithm.auxiliary_targets"
    asks = FIXED | PATHS | {"reward_P", "scores_P", "rows", "state", "advantage_T", "return_T", "batch", *NEXT}


class TargetNetwork(Schema):
    """A slow copy of a network, which targets are computed with."""

    sync_steps: int = Field(default=1, ge=1)
    """Iterations between updates from the trained network."""
    mixup_alpha: float = Field(default=0.05, gt=0, le=1)
    """Share of the trained weights in an update; 1 is a copy."""


class Network(Schema):
    """What every network beside the policy has: a start, an optimiser and a rate of its own."""

    model: NetworkRef | None = None
    """Where its weights start: a published one with its head, or a policy or reward model; null: the policy's body."""
    learning_rate: Number | None = None
    """Rate of its AdamW, or a schedule of it; null: the stage's. Decay, moments, clipping: the stage's."""
    warmup_steps: int = Field(default=0, ge=0)
    """First iterations in which the policy stands still, so that only networks beside it learn."""
    loss: CriticLossUse = CriticLossUse(use="squared")
    """Loss of its values."""
    heads: int = Field(default=1, ge=1)
    """Values at a time, each trained on its own."""
    combine: CombineUse = CombineUse(use="mean")
    """The value that others see, from those of the heads."""
    token_mask: list[TokenMaskUse] = []
    """Which tokens train it; empty: all that were sampled."""
    publish: bool = False
    """Make it an output of the stage, named as its type: `value_model` or `process_reward_model`."""


class Auxiliary(Network):
    """A network beside the policy: its values at every token are the column `<name>_T`, which any part may ask for.

    Without a `target` it is only read, and needs a `model`.
    """

    head: Literal["state", "token", "action", "path", "likelihood"] = "state"
    """What is valued: the state before a token (`<name>_end_P` after the last), the state that a token leads to, the
    token in its state (also `<name>_max_T`, `<name>_mean_T` over the vocabulary), the completion, or, by
    beta·(log p − log p of the start), each token, their sum being the completion's value."""
    beta: float | None = Field(default=None, gt=0)
    """Scale of the head `likelihood`; null: 0.05, or that of a `model` with this head."""
    link: Literal["identity", "logistic"] = "identity"
    """What makes the column of a value; `logistic` gives probabilities, for the loss `logistic`."""
    target: TargetUse | None = None
    """What it is to predict; null: it learns nothing."""
    target_network: TargetNetwork | None = None
    """A slow copy for targets that look ahead; null: they take the values from before the iteration's update."""

    @model_validator(mode="after")
    def trained_or_given(self) -> Self:
        """What learns nothing must come from somewhere, and take no settings of learning."""
        if self.target is None and self.model is None:
            raise ValueError("nothing says what it is to predict: give a `target`, or a `model` that is only read")
        told = [key for key in FROZEN if getattr(self, key) != type(self).model_fields[key].default]
        if self.target is None and told:
            raise ValueError(f"`{told[0]}` without a `target`: nothing is learnt; say what it is to predict")
        if self.target is None and self.publish:
            raise ValueError("`publish` without a `target`: it would be published as it came")
        return self

    @model_validator(mode="after")
    def heads_where_they_mean_something(self) -> Self:
        """One token's action value and a likelihood are single numbers."""
        if self.heads > 1 and self.head in ("action", "likelihood"):
            raise ValueError(f"`heads: {self.heads}` with `head: {self.head}`, which has one value; leave it out")
        if self.publish and self.head in ("action", "path"):
            raise ValueError(f"`head: {self.head}` cannot be published; `state`, `token` and `likelihood` can")
        if self.link == "logistic" and self.head == "likelihood":
            raise ValueError("`link: logistic` with `head: likelihood`, whose tokens' values add up; leave it out")
        if self.beta is not None and self.head != "likelihood":
            raise ValueError(f"`beta` belongs to `head: likelihood`, and this is `{self.head}`")
        return self

    @property
    def type(self) -> str:
        """Type of what is published."""
        return "value_model" if self.head == "state" else "process_reward_model"

    def columns(self, name: str) -> list[str]:
        """Names of its columns at sampled tokens, without the `_T`."""
        return [name, f"{name}_max", f"{name}_mean"] if self.head == "action" else [name]
