"""Changes to the distribution that tokens are sampled from; the log-probabilities that are kept are of the changed one.

Every row of a batch is changed for itself alone, or what runs beside a completion would matter to it. A processor may
ask for the place of the token in its completion as `place_B`, and for the tokens before it as `contexts_B`.
Shapes: B sequences being sampled, V vocabulary, X sequences with tokens before.
"""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from learning.auxiliary_networks.action_values import ActionValues, load_action_values
from learning.batch.token_measures import score_entropy
from learning.generation.engines.token_sampling import compute_entropy
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat
from schemas.references import ActionValuesRef


def adaptive_temperature(
    logits_BV: Tensor,
    *,
    low: ScheduledFloat,
    pivot: ScheduledFloat,
    high: ScheduledFloat,
    tau: Annotated[float, Field(gt=-1, lt=1)] = 0.05,
) -> Tensor:
    """Temperature times 1 + τ·h, h the score of the distribution's entropy (HAPO, Liu et al. 2025).

    Uncertain tokens are explored further, certain ones less. `low`, `pivot` and `high` are the log-entropies at which h
    is −1, 0 and 1, as in the policy loss `heterogeneous`.
    """
    h_B = score_entropy(compute_entropy(logits_BV.log_softmax(-1)), low, pivot, high)
    return logits_BV / (1 + tau * h_B)[:, None]


def action_values(
    logits_BV: Tensor,
    contexts_B: list[list[int]],
    *,
    values: ActionValuesRef,
    beta: ScheduledFloat = 1.0,
    prior: ScheduledFloat = 1.0,
) -> Tensor:
    """π(a|s)^prior · exp(β(Q(s, a) − V(s))), normalised (ILQL, Snell et al. 2023), with the least of the heads of Q.

    `prior: 0` samples by the values alone. The values are those of a stage of kind action_values with the same
    tokenizer; each token costs a forward pass of their network over all tokens before it.
    """
    network = load_cached_values(str(values))
    places = [place for place, ids in enumerate(contexts_B) if ids]
    if not places:
        return logits_BV
    size = logits_BV.shape[1]
    if network.vocabulary != size:
        raise StepError(
            f"logits_processors: action_values: values of {network.vocabulary} tokens for a model with {size}; "
            "train them from a model with the same tokenizer"
        )
    found = network.value_contexts([contexts_B[place] for place in places])
    better_XV = (found.q_XHV.amin(1) - found.v_X[:, None]).to(logits_BV)
    at_X = torch.tensor(places, device=logits_BV.device)
    logp_XV = logits_BV[at_X].log_softmax(-1)
    return logits_BV.index_copy(0, at_X, prior * logp_XV + beta * better_XV)


@lru_cache(maxsize=4)
def load_cached_values(folder: str) -> ActionValues:
    """Return the values in a folder, cached: an artifact never changes."""
    return load_action_values(Path(folder), device="cuda" if torch.cuda.is_available() else "cpu")[0]
