"""Rehearsal: completions of earlier data mixed into an iteration's samples, against forgetting."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row, read_rows
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
    """Add `size` random completions of a chat artifact in every iteration, each as a group of one.

    Their source is `auxiliary`, and no policy sampled them: train on them by a loss term such as `ce` with a
    `token_mask`, and exclude them from the policy loss by the stage's `token_mask: [own]`. Raise StepError if there are
    no rows.
    """
    rows = _load_rows(str(data))
    if not rows:
        raise StepError("extra_samples rehearse: `data` has no rows; check what the stage that wrote it dropped")
    chosen = rng.choice(len(rows), size=min(size, len(rows)), replace=False)
    return [*samples, *(_make_sample(rows[int(i)], sampler) for i in chosen)]


def _make_sample(row: Row, sampler: Sampler) -> Sample:
    text = row["completion"][-1]["content"]
    return sampler.sample_from_text(row, text, source="auxiliary", group=sampler.new_group())


@lru_cache(maxsize=4)
def _load_rows(folder: str) -> list[Row]:
    """Return the rows of a chat artifact."""
    # Artifacts never change, so the cache is never stale.
    return read_rows(Path(folder), "chat")
