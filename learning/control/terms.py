"""Terms of control losses beside TorchRL's own. A batch is a TensorDict of B steps."""

from typing import Any

import torch
from torch import Tensor


def cloning(batch: Any, actor: Any) -> Tensor:
    """Mean negative log-likelihood of the batch's actions, or their mean squared error for a deterministic actor."""
    if hasattr(actor, "get_dist"):
        return -actor.get_dist(batch).log_prob(batch["action"]).mean()
    action = actor(batch.select("observation"))["action"]
    return torch.nn.functional.mse_loss(action, batch["action"])
