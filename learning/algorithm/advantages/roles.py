"""Operations of the advantage pipeline on samples of roles that share episodes.

A group has the samples of one role for one problem, so that `center` and `scale` by group normalise each role alone.
Shapes: X entries of a column.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from learning.batch.batch import Batch
from learning.batch.columns import Column
from schemas.errors import StepError


def by_conversation(column: Column, batch: Batch, *, epsilon: Annotated[float, Field(ge=0)] = 1e-4) -> Column:
    """Normalise by all episodes of the problem, whichever roles spoke in them: (R − mean) / (deviation + `epsilon`).

    It is one baseline for all roles, of all policies. An episode counts once, with the mean reward of its roles; the
    deviation is that of the population. Where all episodes earned the same, the result is 0. Raise StepError in a stage
    without roles.
    """
    if "team_mean" not in batch.paths:
        raise StepError("advantage by_conversation: this stage has no `roles`; use `center` and `scale` by group")
    mean_X, deviation_X = (batch.paths[name][column.path_X] for name in ("team_mean", "team_deviation"))
    values_X = (column.values_X - mean_X) / (deviation_X + epsilon)
    return replace(column, values_X=values_X.masked_fill(deviation_X == 0, 0.0))
