"""Two agents on one problem: the pioneer answers, the observer sees the problem with that answer and answers too.

(CORY, Ma et al. 2024.) The rewards are in `learning.rewards.collective`.
"""

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.problems.second_opinions import TEMPLATE, looked_up, shown_to
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.verdicts import guest, replies
from schemas.errors import StepError
from schemas.references import ChatRef, PolicyRef
from schemas.use import PromptSamplerUse


def observed(
    rng: np.random.Generator,
    *,
    of: PromptSamplerUse,
    partner: PolicyRef,
    data: ChatRef | None = None,
    template: str = TEMPLATE,
    temperature: Annotated[float, Field(ge=0)] = 1.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
) -> list[SampleRequest]:
    """What the plan `of` asks for, each problem shown with the answer of a partner who went first (CORY 2024).

    The partner answers each problem once; the text is kept in the row as `shown`. With `data` it is a query, and the
    document that looks most like it is shown. Raises StepError where the problem
    leaves the partner no room.
    """
    requests: list[SampleRequest] = of()
    sampling = Sampling(temperature, max_completion_length)
    said = replies(guest(partner), [request.row["prompt"] for request in requests], n=1, sampling=sampling, rng=rng)
    if any(texts is None for texts in said):
        raise StepError("prompt_sampler observed: a problem leaves the partner no room; lower max_completion_length")
    shown = looked_up([texts[0] for texts in said], data)
    return [
        replace(request, row=shown_to(request.row, text, template) | {"shown": text})
        for request, text in zip(requests, shown, strict=True)
    ]
