"""Operations of the advantage pipeline that change every value by itself.

Shapes: X entries of a column (paths or sampled tokens).
"""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field

from learning.algorithm.token_masks.masks import Source
from learning.batch.batch import Batch
from learning.batch.columns import Column
from learning.batch.keyed import among_of
from schemas.schedules import ScheduledFloat


def affine(column: Column, batch: Batch, *, factor: ScheduledFloat = 1.0, offset: ScheduledFloat = 0.0) -> Column:
    """factor · v + offset; factor 0 and offset 1 make every advantage 1."""
    return replace(column, values_X=column.values_X * factor + offset)


def power(column: Column, batch: Batch, *, exponent: Annotated[float, Field(gt=0)] = 2.0) -> Column:
    """|v|^exponent with the sign of v."""
    return replace(column, values_X=column.values_X.sign() * column.values_X.abs() ** exponent)


def sign(column: Column, batch: Batch) -> Column:
    """−1, 0 or 1."""
    return replace(column, values_X=column.values_X.sign())


def where(
    column: Column,
    batch: Batch,
    *,
    above: ScheduledFloat | None = None,
    below: ScheduledFloat | None = None,
    sources: list[Source] | None = None,
) -> Column:
    """Keep values above and below the bounds, of the named sources; all others become 0."""
    values_X, keep_X = column.values_X, torch.ones_like(column.values_X, dtype=torch.bool)
    if above is not None:
        keep_X &= values_X > above
    if below is not None:
        keep_X &= values_X < below
    if (among_X := among_of(batch, column.path_X, sources)) is not None:
        keep_X &= among_X
    return replace(column, values_X=values_X.where(keep_X, torch.zeros_like(values_X)))
