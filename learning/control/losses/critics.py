"""Values that the critics of a loss give, for terms that use them. B steps; C critics."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

CRITIC = "critic_network_params."
"""Beginning of the names of a critic of observations among the networks of a policy."""


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


def value_starts(world: Any, value: Any) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return a critic's values (K,) of the first observations of episodes with tasks (K, D).

    `value` maps observations (K, O) to values (K, 1). None if the world does not show where its episodes begin.
    """
    show = getattr(getattr(world, "unwrapped", world), "show_start", None)
    if show is None or value is None:
        return None

    def value_of(task_KD: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return value(torch.from_numpy(show(task_KD))).reshape(-1).numpy()

    return value_of


def find_critic(loss: Any) -> Callable[[Tensor], Tensor] | None:
    """Return a loss's critic of observations, with its present weights; None if it has none."""
    if getattr(loss, "critic_network", None) is None:
        return None

    def value(observation: Tensor) -> Tensor:
        with loss.critic_network_params.to_module(loss.critic_network):
            return loss.critic_network(observation)

    return value


def load_critic(critic: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return a new critic of observations with the weights of a policy's networks; None if there are none."""
    weights = {name.removeprefix(CRITIC): tensor for name, tensor in tensors.items() if name.startswith(CRITIC)}
    own = {name for name, tensor in critic.state_dict().items() if isinstance(tensor, Tensor)}
    if not own <= weights.keys():
        return None
    critic.load_state_dict({name: weights[name] for name in own}, strict=False)
    return critic
