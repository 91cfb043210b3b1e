"""Actions for transitions without any, from an inverse dynamics model (Zheng et al. 2022).

`kind: python` calls `hide_actions` and `label_actions`. Shapes: T transitions, O numbers of an observation.
"""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import nn

from learning.control.stepping.transitions import Transitions, join_transitions, read_transitions, write_transitions

HIDDEN = -1
"""In place of a choice that is not known; numbers are NaN. A loss cannot be trained on either."""


def hide_actions(context: Any) -> None:
    """Write the input `transitions` without their actions, as the output `transitions`."""
    given = read_transitions(context.input("transitions"))
    unknown = np.full_like(given.action, HIDDEN if given.spaces.is_discrete else np.nan)
    write_transitions(context.output("transitions"), replace(given, action=unknown))


def label_actions(
    context: Any,
    *,
    steps: Annotated[int, Field(ge=1)] = 500,
    learning_rate: Annotated[float, Field(gt=0)] = 1e-2,
    hidden_size: Annotated[int, Field(ge=1)] = 64,
) -> dict[str, float]:
    """Write all of `labelled` and then all of `unlabelled` with predicted actions, as the output `transitions`.

    The model sees an observation and its difference from the next one, and is fitted on `labelled`. Return the share of
    labelled actions that it recovers, or for numbers their mean squared error.
    """
    labelled, unlabelled = (read_transitions(context.input(name)) for name in ("labelled", "unlabelled"))
    labelled.spaces.require(unlabelled.spaces, "unlabelled")
    torch.manual_seed(context.seed)
    model = fit_inverse_dynamics(labelled, steps, learning_rate, hidden_size)
    recovered, predicted = (predict_actions(model, part) for part in (labelled, unlabelled))
    union = join_transitions([labelled, replace(unlabelled, action=predicted)])
    write_transitions(context.output("transitions"), union)
    counts = {"labelled": len(labelled), "proxy_labelled": len(unlabelled)}
    if labelled.spaces.is_discrete:
        return {**counts, "accuracy": float((recovered == labelled.action).mean())}
    return {**counts, "mean_squared_error": float(np.square(recovered - labelled.action).mean())}


def fit_inverse_dynamics(data: Transitions, steps: int, learning_rate: float, hidden_size: int) -> nn.Module:
    """Return a network from an observation and the change to the next one to the action between them."""
    inputs, spaces = make_inputs(data), data.spaces
    model = nn.Sequential(nn.Linear(inputs.shape[1], hidden_size), nn.ReLU(), nn.Linear(hidden_size, spaces.actions))
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    actions = torch.from_numpy(np.array(data.action))
    for _ in range(steps):
        predicted = model(inputs)
        loss = nn.functional.cross_entropy if spaces.is_discrete else nn.functional.mse_loss
        optimizer.zero_grad()
        loss(predicted, actions).backward()
        optimizer.step()
    return model


def make_inputs(data: Transitions) -> torch.Tensor:
    """Return what the model sees: (T, 2 O)."""
    return torch.from_numpy(np.concatenate([data.observation, data.next_observation - data.observation], axis=1))


def predict_actions(model: nn.Module, data: Transitions) -> np.ndarray:
    """Return the likeliest action of each transition, within the bounds."""
    with torch.no_grad():
        predicted = model(make_inputs(data)).numpy()
    if data.spaces.is_discrete:
        return predicted.argmax(1)
    return np.clip(predicted, data.spaces.low, data.spaces.high).astype(np.float32)
