"""Encodings of histories that are near where what follows is alike (Hong et al. 2023): a term, and a measure.

The encoding f is what the hidden layers of a value network make of an observation, such as a history. Shapes: B steps,
P pairs of them, F numbers of an encoding.
"""

import json
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from learning.control.buffers.buffer import Buffer
from learning.control.losses.standard import Share
from learning.control.policies.policy import load_control_policy
from learning.control.stepping.transitions import read_transitions
from schemas.errors import StepError


def encode(network: Any, observation: Tensor) -> Tensor:
    """Return the output of the last hidden layer of a value network (…, F)."""
    from torchrl.modules import MLP

    (layers,) = (module for module in network.modules() if isinstance(module, MLP))
    made = observation
    for layer in list(layers)[:-1]:
        made = layer(made)
    return made


def compare_pairs(
    now_BF: Tensor, later_BF: Tensor, reward_B: Tensor, action_B: Tensor, other_B: Tensor, gamma: float
) -> Tensor:
    """Return (|f1 − f2| − |r1 − r2| − γ |f1' − f2'|)² of each step and the `other` one with the same action (P,).

    Distances are sums of absolute differences. Pairs with different actions, and a step with itself, are left out.
    """
    apart_B = (now_BF - now_BF[other_B]).abs().sum(-1)
    follow_B = (reward_B - reward_B[other_B]).abs() + gamma * (later_BF - later_BF[other_B]).abs().sum(-1)
    is_pair_B = (action_B == action_B[other_B]) & (other_B != torch.arange(len(other_B)))
    return (apart_B - follow_B)[is_pair_B].square()


def bisimulation(batch: Any, loss: Any, *, gamma: Share = 0.9) -> Tensor:
    """Mean of `compare_pairs` over a batch with its steps in another order, beside `dqn` (Hong et al. 2023).

    What follows is encoded by the target network, without gradient, and as 0 behind an end.
    """
    if not hasattr(loss, "target_value_network_params"):
        raise StepError("loss_terms: bisimulation needs the values of choices of `loss: dqn`")
    following = batch["next"]
    with loss.value_network_params.to_module(loss.value_network):
        now_BF = encode(loss.value_network, batch["observation"])
    with torch.no_grad(), loss.target_value_network_params.to_module(loss.value_network):
        later_BF = encode(loss.value_network, following["observation"]) * ~following["terminated"]
    other_B = torch.randperm(len(now_BF))
    errors_P = compare_pairs(now_BF, later_BF, following["reward"][:, 0], batch["action"], other_B, gamma)
    return errors_P.mean() if len(errors_P) else 0.0 * now_BF.sum()


def measure_bisimulation(
    context: Any, *, gamma: Share = 0.9, pairs: Annotated[int, Field(ge=1)] = 10000
) -> dict[str, float]:
    """Measure how far the encoding of the input `policy` is from that, on random pairs of the input `transitions`.

    Return `bisimulation`, the mean of `compare_pairs`, and `spread`, the mean distance of two encodings: where it is
    small, too, all may be one.
    """
    policy, data = load_control_policy(context.input("policy")), read_transitions(context.input("transitions"))
    policy.spaces.require(data.spaces, "transitions")
    if policy.actor_form != "make_choice_values":
        raise StepError("measure_bisimulation: the policy must take the best of values of choices, as that of dqn")
    buffer = Buffer(len(data), data.spaces)
    buffer.add(data)
    rng = np.random.default_rng(context.seed)
    errors, apart = [], []
    with torch.no_grad():
        for _ in range(-(-pairs // len(data))):
            place_B = torch.from_numpy(rng.permutation(len(data)))
            batch = buffer.make_batch(torch.arange(len(data)))
            now_BF = encode(policy.actor, batch["observation"])
            later_BF = encode(policy.actor, batch["next", "observation"]) * ~batch["next", "terminated"]
            reward_B = batch["next", "reward"][:, 0]
            errors.append(compare_pairs(now_BF, later_BF, reward_B, batch["action"], place_B, gamma))
            apart.append((now_BF - now_BF[place_B]).abs().sum(-1))
    measured = {"bisimulation": float(torch.cat(errors).mean()), "spread": float(torch.cat(apart).mean())}
    (context.output("result") / "bisimulation.json").write_text(json.dumps(measured) + "\n")
    return measured
