"""Rollouts: the newest steps of every world, for losses on them alone. N worlds, S steps of each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learning.control.buffers.buffer import make_batch
from learning.control.stepping.worlds import Steps


def stack_rollout(rollout: Sequence[Steps]) -> Any:
    """Return the steps of S iterations as one batch (N, S)."""

    def stack(name: str) -> Tensor:
        return torch.from_numpy(np.stack([getattr(steps, name) for steps in rollout], axis=1))

    columns = {name: stack(name) for name in ("observation", "action", "next_observation")}
    columns["reward"] = stack("reward").float()[..., None]
    columns |= {name: stack(name)[..., None] for name in ("terminated", "truncated")}
    return make_batch(columns)


def add_previous_policy(actor: Any, batch: Any) -> None:
    """Add what the actor, before its next update, makes of a batch.

    `action_log_prob` are the log-probabilities of the actions, `previous` the parameters of their distributions.
    """
    made = actor.get_dist_params(batch.select("observation"))
    batch["previous"] = made.select("logits", "loc", "scale", strict=False)
    batch["action_log_prob"] = actor.build_dist_from_params(made).log_prob(batch["action"])
