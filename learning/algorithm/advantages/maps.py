"""Operations of the advantage pipeline that map every value on its own.

Shapes: X entries of a column (paths or sampled tokens).
"""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field

from learning.batch.batch import Batch
from learning.batch.columns import Column, select_sources
from learning.samples.sample import Source
from schemas.number_schedules import ScheduledFloat


def affine(column: Column, batch: Batch, *, factor: ScheduledFloat = 1.0, offset: ScheduledFloat = 0.0) -> Column:
    """factor · v + offset; with factor 0 and offset 1 every advantage is 1."""
    return replace(column, values_X=column.values_X * factor + offset)


def power(column: Column, batch: Batch, *, exponent: Annotated[float, Field(gt=0)] = 2.0) -> Column:
    """sign(v)·|v|^exponent."""
    return replace(column, values_X=column.values_X.sign() * column.values_X.abs() ** exponent)


def sign(column: Column, batch: Batch) -> Column:
    """Sign of the value: −1, 0 or 1."""
    return replace(column, values_X=column.values_X.sign())


def where(
    column: Column,
    batch: Batch,
    *,
    above: ScheduledFloat | None = None,
    below: ScheduledFloat | None = None,
    sources: list[Source] | None = None,
) -> Column:
    """Keep values above `above`, below `below` and of the named sources; all others become 0."""
    values_X, keep_X = column.values_X, torch.ones_like(column.values_X, dtype=torch.bool)
    if above is not None:
        keep_X &= values_X > above
    if below is not None:
        keep_X &= values_X < below
    if (source_X := select_sources(batch, column.path_X, sources)) is not None:
        keep_X &= source_X
    return replace(column, values_X=values_X.where(keep_X, torch.zeros_like(values_X)))
