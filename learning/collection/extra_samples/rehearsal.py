"""Rehearsal: completions of earlier lessons among those that an iteration sampled, so that they are not forgotten."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.rows import read_rows
from learning.samples.sample import Sample
from learning.sampling.sampler import Sampler
from schemas.errors import StepError
from schemas.references import ChatRef


def rehearse(
    samples: list[Sample],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    data: ChatRef,
    size: Annotated[int, Field(ge=1)] = 16,
) -> list[Sample]:
    """Add `size` completions of a chat artifact, drawn anew in every iteration, each in a group of its own.

    Their source is `auxiliary` and no policy sampled them: a loss term such as `cross_entropy` with a `token_mask`
    covers them; the stage's own `token_mask: [own]` keeps them out of the policy loss. Raises StepError when there are
    no rows.
    """
    rows = _rows(str(data))
    if not rows:
        raise StepError("extra_samples rehearse: no rows to rehearse; look at what the stage before it dropped")
    chosen = rng.choice(len(rows), size=min(size, len(rows)), replace=False)
    return [*samples, *(_sample(rows[int(i)], sampler) for i in chosen)]


def _sample(row: dict[str, Any], sampler: Sampler) -> Sample:
    text = row["completion"][-1]["content"]
    return sampler.sample_from_text(row, text, source="auxiliary", group=sampler.new_group())


@lru_cache(maxsize=4)
def _rows(folder: str) -> list[dict[str, Any]]:
    """The rows of an artifact, kept: they never change."""
    return read_rows(Path(folder), "chat")
