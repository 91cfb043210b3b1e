"""Which sampled groups are trained on, judged by raw scores, never by the shaped reward.

A filter gets the raw scores of every reward (by its name in the recipe, in order) and returns a mask over paths.
Shapes: P scorable paths.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from schemas.errors import StepError


def reward_variance(
    scores_P: Mapping[str, Tensor],
    group_P: Tensor,
    *,
    component: str | None = None,
    min: Annotated[float, Field(ge=0)] = 0.0,
    max: Annotated[float, Field(gt=0)] | None = None,
) -> Tensor:
    """Keep groups whose scores vary: standard deviation above `min` and at most `max` (dynamic sampling of DAPO).

    `component` names the reward that judges; null is the first of the list, which should be the verifiable one: a
    length penalty varies in a group that is all wrong, and would fake a signal.
    """
    name = component or next(iter(scores_P))
    if name not in scores_P:
        raise StepError(f"filter reward_variance: no reward {name!r}; the stage has: {', '.join(scores_P)}")
    keep_P = torch.zeros(len(group_P), dtype=torch.bool)
    for group in group_P.unique():
        mine_P = group_P == group
        values = scores_P[name][mine_P]
        deviation = 0.0 if values.min() == values.max() else float(values.std(correction=0))
        keep_P[mine_P] = deviation > min and (max is None or deviation <= max)
    return keep_P
