"""Values that the critics of a loss give, for terms that use them. B steps; C critics."""

from typing import Any

import torch
from torch import Tensor


def predict_action_values(loss: Any, batch: Any, action: Tensor, *, target: bool = False) -> Tensor:
    """Return the values (C, B) of actions by a loss's critics, or by their targets; the critics get no gradient."""
    from tensordict import TensorDict

    params = (loss.target_qvalue_network_params if target else loss.qvalue_network_params).data
    values = []
    for critic in range(params.batch_size[0]):
        with params[critic].to_module(loss.qvalue_network):
            asked = TensorDict({"observation": batch["observation"], "action": action}, batch.shape)
            values.append(loss.qvalue_network(asked)["state_action_value"].squeeze(-1))
    return torch.stack(values)


def compute_advantage(batch: Any, loss: Any) -> Tensor:
    """Return Q(s, a) − V(s) of a batch (B,): the smaller target critic, without gradient, minus the trained value."""
    value = batch.select("observation")
    with loss.value_network_params.to_module(loss.value_network):
        loss.value_network(value)
    smaller = predict_action_values(loss, batch, batch["action"], target=True).min(0).values
    return smaller - value["state_value"].squeeze(-1)
