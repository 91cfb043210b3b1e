"""Networks trained together with the policy of an rl stage: heads, targets, and the functions that train them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Schema
from schemas.number_schedules import Number
from schemas.references import NetworkRef
from schemas.supplied import FIXED, PATHS
from schemas.use import TokenMaskUse, Use

NEXT = ("next_T", "next_mean_T")
"""Columns from a target network: the value of the state after each token; for actions their best value and mean."""
FROZEN = ("learning_rate", "warmup_steps", "loss", "token_mask", "target_network")
"""Keys without effect on a network that is not trained."""


class CriticLossUse(Use):
    """Loss of each value, per token (per completion for the heads `path` and `likelihood`)."""

    home = ("learning.algorithm.critic_losses",)
    asks = frozenset({"value_T", "value_old_T", "return_T"})


class CombineUse(Use):
    """Combines the values of several heads into one."""

    home = ("learning.algorithm.critic_heads",)
    takes = ("value_TH",)


class TargetUse(Use):
    """Target of an auxiliary model at every sampled token; NaN: the token does not train it."""

    home = ("learning.algorithm.auxiliary_targets",)
    asks = FIXED | PATHS | {"reward_P", "scores_P", "rows", "state", "advantage_T", "return_T", "batch", *NEXT}


class ActionValueLossUse(Use):
    """Loss of Q and V at a token; the weighted sum over the list is trained on."""

    home = ("learning.algorithm.action_value_losses",)
    asks = frozenset(
        {
            *("q_THV", "q_TH", "v_T", "q_target_T", "v_next_T", "q_next_max_T", "q_next_ref_T"),
            *("reward_T", "path_T", "turn_T", "length_T"),
        }
    )
    weight: Number = 1.0
    """Factor in the sum; a number schedule is allowed."""


class TargetNetwork(Schema):
    """A slowly updated copy of a network, from which targets are computed."""

    sync_steps: int = Field(default=1, ge=1)
    """Iterations between updates from the trained network."""
    mixup_alpha: float = Field(default=0.05, gt=0, le=1)
    """Share of the trained weights in an update; 1 copies them."""


class Network(Schema):
    """Keys of every network trained together with the policy; each has its own initial weights and optimiser."""

    model: NetworkRef | None = None
    """Initial weights: a published network with its head, or a policy or reward model; null: the policy's body."""
    learning_rate: Number | None = None
    """Learning rate of its AdamW, or a number schedule; null: the stage's. The stage sets decay, betas and clipping."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of first iterations in which the policy is not trained, only this and the other networks."""
    loss: CriticLossUse = CriticLossUse(use="squared")
    """Loss of its values."""
    heads: int = Field(default=1, ge=1)
    """Number of heads, each with its own value, trained independently."""
    combine: CombineUse = CombineUse(use="mean")
    """Combines the values of the heads into the one that other parts use."""
    token_mask: list[TokenMaskUse] = []
    """Selects the tokens that train it; empty: all sampled tokens."""
    publish: bool = False
    """Whether it is an output of the stage, named after its type: `value_model` or `process_reward_model`."""


class Auxiliary(Network):
    """A network trained together with the policy; its values at every token are the column `<name>_T`.

    Without a `target` it is not trained, and needs a `model`.
    """

    head: Literal["state", "token", "action", "path", "turns", "likelihood"] = "state"
    """What a value refers to. `state`: the state before a token (`<name>_end_P` after the last one); `token`: the state
    after it; `action`: the token in its state (also `<name>_max_T`, `<name>_mean_T` over the vocabulary); `path`: the
    completion; `turns`: each turn of an episode, at its last token, 0 at the others; they add up to the completion's
    value; `likelihood`: each token by beta·(log p − log p of the initial weights), which add up to the
    completion's value."""
    beta: float | None = Field(default=None, gt=0)
    """Scale of the head `likelihood`; null: that of a `model` with this head, else 0.05."""
    link: Literal["identity", "logistic"] = "identity"
    """Function from values to the column; `logistic` gives probabilities, for the loss `logistic`."""
    target: TargetUse | None = None
    """Target that it is trained to predict; null: it is not trained."""
    target_network: TargetNetwork | None = None
    """Slow copy for targets that use later values; null: those targets use the values before the iteration's update."""

    @model_validator(mode="after")
    def require_target_or_model(self) -> Self:
        """Require `target` or `model`; without `target`, refuse `publish` and settings of training."""
        if self.target is None and self.model is None:
            raise ValueError("give a `target` to predict, or a `model` that is used without training")
        ignored = [key for key in FROZEN if not self._is_default(key)]
        if self.target is None and ignored:
            raise ValueError(f"`{ignored[0]}` has no effect without a `target`; give a target to predict, or remove it")
        if self.target is None and self.publish:
            raise ValueError("`publish` without a `target` would publish an untrained copy of `model`; remove it")
        return self

    def _is_default(self, key: str) -> bool:
        """Return whether a key has its default; a plan fills in the options of the function that it names."""
        value, default = getattr(self, key), type(self).model_fields[key].default
        if isinstance(value, CriticLossUse):
            return value.use == default.use and all(option is None for option in value.options.values())
        return value == default

    @model_validator(mode="after")
    def refuse_unsupported_keys(self) -> Self:
        """Refuse `heads`, `publish`, `link` and `beta` with a `head` that does not support them."""
        if self.heads > 1 and self.head in ("action", "turns", "likelihood"):
            raise ValueError(f"`head: {self.head}` supports a single head; remove `heads: {self.heads}`")
        if self.publish and self.head in ("action", "path"):
            raise ValueError(f"`head: {self.head}` cannot be published; `state`, `token`, `turns` and `likelihood` can")
        if self.link == "logistic" and self.head in ("turns", "likelihood"):
            raise ValueError(
                f"`head: {self.head}` does not support `link: logistic`, because its values are summed; remove `link`"
            )
        if self.beta is not None and self.head != "likelihood":
            raise ValueError(f"`beta` needs `head: likelihood`, not `{self.head}`")
        return self

    @property
    def type(self) -> str:
        """Artifact type under which it is published."""
        return "value_model" if self.head == "state" else "process_reward_model"

    def columns(self, name: str) -> list[str]:
        """Return the names of its columns at sampled tokens, without the suffix `_T`."""
        return [name, f"{name}_max", f"{name}_mean"] if self.head == "action" else [name]
