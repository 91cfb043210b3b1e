"""Rehearsal: completions of earlier data mixed into an iteration's samples, against forgetting."""

from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row, read_cached_rows
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
    rows = read_cached_rows(str(data), "chat")
    if not rows:
        raise StepError("extra_samples rehearse: `data` has no rows; check what the stage that wrote it dropped")
    chosen = rng.choice(len(rows), size=min(size, len(rows)), replace=False)
    return [*samples, *(_make_sample(rows[int(i)], sampler) for i in chosen)]


def _make_sample(row: Row, sampler: Sampler) -> Sample:
    text = row["completion"][-1]["content"]
    return sampler.sample_from_text(row, text, source="auxiliary", group=sampler.new_group())
