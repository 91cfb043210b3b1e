"""An actor that chooses one of a family of policies for each observation. B steps, O numbers of an observation."""

from typing import Any

import torch
from torch import Tensor, nn


class BalancedActor(nn.Module):
    """Draws actions of the family's policy whose balance a second network chooses for the observation."""

    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self, family: Any, balance: Any) -> None:
        super().__init__()
        self.family, self.balance = family, balance
        self.register_buffer("range", torch.tensor([0.0, 1.0]))

    def choose(self, observation_BO: Tensor) -> Tensor:
        """Return the balance of each observation (B, 1), within the range."""
        from tensordict import TensorDict

        share_B1 = self.balance(TensorDict({"observation": observation_BO}, observation_BO.shape[:-1]))["action"]
        lowest, highest = self.get_buffer("range")
        return lowest + share_B1 * (highest - lowest)

    def condition(self, observation_BO: Tensor, balance_B1: Tensor) -> Any:
        """Return what the family sees: observations, and balances as numbers between −1 and 1."""
        from tensordict import TensorDict

        lowest, highest = self.get_buffer("range")
        scaled_B1 = 2 * (balance_B1 - lowest) / (highest - lowest) - 1
        return TensorDict({"observation": torch.cat([observation_BO, scaled_B1], -1)}, observation_BO.shape[:-1])

    def forward(self, batch: Any) -> Any:
        """Write `action`, of the policy with the chosen balance."""
        shown = self.condition(batch["observation"], self.choose(batch["observation"]))
        return batch.set("action", self.family(shown)["action"])

    def get_dist(self, batch: Any) -> Any:
        """Return the distribution of the policy with the chosen balance."""
        return self.family.get_dist(self.condition(batch["observation"], self.choose(batch["observation"])))
