"""kind: action_values — Q and V of tokens from episodes that others played."""

import operator
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from schemas.auxiliary import ActionValueLossUse, TargetNetwork
from schemas.chat import Chat
from schemas.references import ChatRef, PolicyRef
from schemas.stages.base import BaseStage
from schemas.training import Training
from schemas.use import RewardUse


class ActionValues(Training, Chat, BaseStage):
    """Offline reinforcement learning of a language model: Q and V of its tokens, from episodes with rewards.

    The default losses are those of ILQL (Snell et al. 2023). The logits processor `action_values` samples with them,
    the reward `models.action_values` ranks completions by them.
    """

    data_port: ClassVar = "data"
    learning_approach: ClassVar = "reinforcement-learning"
    single_keys: ClassVar = frozenset({"loss"})

    kind: Literal["action_values"]
    model: PolicyRef
    """Model whose body is used, and with `start: logits` its output layer."""
    data: ChatRef
    """Episodes: all turns of the assistant are actions, and `metadata` have their `rewards` (docs/rl.md)."""
    rewards: list[RewardUse] = Field(default=[], exclude_if=operator.not_)
    """Functions that score the last turn of an episode, in place of the rewards in its metadata; the other turns earn
    nothing then."""
    loss: list[ActionValueLossUse] = Field(
        default=[
            ActionValueLossUse(use="expectile"),
            ActionValueLossUse(use="bellman"),
            ActionValueLossUse(use="conservative", weight=0.1),
        ],
        min_length=1,
    )
    """Losses of a token; the mean over the tokens of their weighted sum is minimised."""
    heads: int = Field(default=2, ge=1)
    """Number of Q values of an action; targets and sampling use the least of them."""
    start: Literal["random", "logits"] = "random"
    """Initial Q: near 0 at random, or V + `logits_scale`·(logit − highest logit) of `model`, so that the best action
    is the model's own greedy token."""
    logits_scale: float = Field(default=1.0, gt=0)
    """Scale of the logits of `start: logits`."""
    target_network: TargetNetwork | None = TargetNetwork()
    """Slow copy for targets, which is also the output; null: the network itself."""
    reference: PolicyRef | None = None
    """Model whose greedy token the loss `reference_bellman` trusts; null: `model`."""
    max_length: int | None = Field(default=None, ge=2)
    """Most tokens of an episode, at most the model's maximum length (null: that); longer ones are left out."""
    per_device_train_batch_size: int = Field(default=32, ge=1)
    """Episodes per optimiser step."""
    max_tokens_per_micro_batch: int = Field(default=4096, ge=1)
    """Most tokens per forward pass; each has values of the whole vocabulary. Does not change the gradient."""
    num_train_epochs: float = Field(default=1.0, gt=0)
    """Passes over the data if `max_steps` is -1."""

    @model_validator(mode="after")
    def refuse_useless_keys(self) -> Self:
        """Refuse several heads with `start: logits`, and keys that nothing reads."""
        if self.start == "logits" and self.heads > 1:
            raise ValueError("`start: logits` gives all heads the same values: set `heads: 1`")
        if self.start == "random" and self.logits_scale != 1.0:
            raise ValueError("`logits_scale` is for `start: logits`; leave it out")
        names = {use.use for use in self.loss}
        if self.reference is not None and not any(":" in name or name == "reference_bellman" for name in names):
            raise ValueError("`reference` has no effect: no loss asks for its greedy token (`reference_bellman`)")
        return self

    def outputs(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the values."""
        return {"values": "action_values"}
