"""Changes to the distribution that tokens are sampled from; the log-probabilities that are kept are of the changed one.

Every row of a batch is changed for itself alone, or what runs beside a completion would matter to it. A processor may
ask for the place of the token in its completion as `place_B`.
Shapes: B sequences being sampled, V vocabulary.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from learning.batch.token_measures import score_entropy
from learning.generation.engines.token_sampling import compute_entropy
from schemas.number_schedules import ScheduledFloat


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
