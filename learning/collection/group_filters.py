"""Group filters: which sampled groups are trained on, by raw scores and not by the shaped reward.

A filter receives the raw scores of every reward (by its name in the recipe, in order) and returns a mask over paths.
Shapes: P scorable paths.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from learning.data.rows import Row
from learning.samples.sample import History
from schemas.errors import StepError


def reward_variance(
    scores_P: Mapping[str, Tensor],
    group_P: Tensor,
    *,
    reward: str | None = None,
    min: Annotated[float, Field(ge=0)] = 0.0,
    max: Annotated[float, Field(gt=0)] | None = None,
) -> Tensor:
    """Keep groups with a standard deviation of scores above `min` and at most `max` (dynamic sampling of DAPO).

    `reward` names the reward to use; null is the first of the list, which should be the verifiable one: a length
    penalty also varies in a group that is all wrong.
    """
    name = reward or next(iter(scores_P))
    if name not in scores_P:
        raise StepError(f"filter_groups reward_variance: no reward {name!r}; the stage has: {', '.join(scores_P)}")
    keep_P = torch.zeros(len(group_P), dtype=torch.bool)
    for group in group_P.unique():
        member_P = group_P == group
        values = scores_P[name][member_P]
        deviation = 0.0 if values.min() == values.max() else float(values.std(correction=0))
        keep_P[member_P] = deviation > min and (max is None or deviation <= max)
    return keep_P


def similar_history(
    group_P: Tensor,
    rows: list[Row],
    history: History,
    state: dict[str, Any],
    *,
    top_p: Annotated[float, Field(ge=0, le=1)] = 0.1,
    threshold: Annotated[float, Field(ge=-1, le=1)] = 0.5,
    warmup: Annotated[int, Field(ge=1)] = 2,
) -> Tensor:
    """Keep rows with an answer, and unlabelled rows whose pass rates develop like those of labelled ones (TraPO 2025).

    A row's history is its pass rate at each visit; similarity is the mean, over the labelled rows seen so far, of the
    cosine of two z-scored histories. The `top_p` most similar unlabelled rows of the batch are kept, and all with a
    similarity of at least `threshold`; an unlabelled row is not trained on in its first `warmup` visits. The pass rate
    is the mean of the stage's first reward, which must score both kinds of rows (`composite.first`).
    """
    labelled = state.setdefault("labelled", [])
    places = {int(group): i for i, group in reversed(list(enumerate(group_P.tolist())))}
    known = set(labelled)
    labelled += [i for i in dict.fromkeys(row["id"] for row in rows if row["answer"] is not None) if i not in known]
    references = [history.rates[i] for i in labelled if i in history.rates]
    similar: dict[int, float] = {}
    for group, i in sorted(places.items()):
        rates = history.rates.get(rows[i]["id"], [])
        if rows[i]["answer"] is None and len(rates) > warmup:
            similar[group] = compute_mean_cosine(rates, references)
    ranked = sorted(similar, key=lambda group: (-similar[group], group))
    kept = set(ranked[: math.ceil(top_p * len(ranked))]) | {g for g, value in similar.items() if value >= threshold}
    kept |= {group for group, i in places.items() if rows[i]["answer"] is not None}
    return torch.tensor([group in kept for group in group_P.tolist()], dtype=torch.bool)


def compute_mean_cosine(rates: Sequence[float], references: Sequence[Sequence[float]]) -> float:
    """Return the mean correlation of a history with references, each over the visits that both have.

    A constant history has no correlation: such a reference is skipped, and constant `rates` give 0.
    """
    cosines = []
    for other in references:
        size = min(len(rates), len(other))
        centred, reference = (np.array(x[:size]) - np.mean(x[:size]) for x in (rates, other))
        if size > 1 and np.ptp(other[:size]) > 0:
            norm = np.linalg.norm(centred) * np.linalg.norm(reference)
            cosines.append(float(centred @ reference / norm) if np.ptp(rates[:size]) > 0 else 0.0)
    return sum(cosines) / len(cosines) if cosines else 0.0
