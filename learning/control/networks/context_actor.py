"""A policy that is given a summary of the episode, and acts for one of them.

Shapes: B windows, K steps of a window, Z numbers of a summary, O of an observation.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from learning.control.stepping.spaces import Spaces

NUMBERS = 8
"""Numbers of a summary, Z."""


class ContextActor(nn.Module):
    """Draws actions of a policy that sees the observation and a summary; it acts with the preferred summary."""

    def __init__(self, policy: Any, encoder: nn.Module, spaces: Spaces) -> None:
        super().__init__()
        self.policy, self.encoder, self.spaces = policy, encoder, spaces
        self.preferred = nn.Parameter(torch.randn(NUMBERS) / NUMBERS**0.5)

    def summarise(self, window: Any) -> Tensor:
        """Return the summary of each window (B, Z): the mean of what the encoder makes of its steps."""
        action = window["action"]
        encoded = one_hot(action, self.spaces.actions).float() if self.spaces.is_discrete else action
        made_BKZ = self.encoder(torch.cat([window["observation"], encoded], -1)) * window["mask"][..., None]
        return made_BKZ.sum(1) / window["mask"].sum(1)[:, None]

    def condition(self, observation: Tensor, summary: Tensor) -> Any:
        """Return what the policy sees: observations (..., O) with summaries (..., Z)."""
        from tensordict import TensorDict

        shown = torch.cat([observation, summary.expand(*observation.shape[:-1], NUMBERS)], -1)
        return TensorDict({"observation": shown}, shown.shape[:-1])

    def forward(self, batch: Any) -> Any:
        """Write `action`, of the policy with the preferred summary."""
        return batch.set("action", self.policy(self.condition(batch["observation"], self.preferred))["action"])
