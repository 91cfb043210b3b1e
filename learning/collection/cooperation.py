"""Two agents on one problem (CORY, Ma et al. 2024): the observer sees the problem with the pioneer's answer.

The rewards are in `learning.rewards.collective`.
"""

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.lookup import PromptSamplerFunction
from learning.problems.second_opinions import TEMPLATE, look_up_documents, show_answer
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import SampleRequest
from learning.sampling.verdicts import guest, replies
from schemas.errors import StepError
from schemas.references import ChatRef, PolicyRef


def observed(
    rng: np.random.Generator,
    *,
    of: PromptSamplerFunction,
    partner: PolicyRef,
    data: ChatRef | None = None,
    template: str = TEMPLATE,
    temperature: Annotated[float, Field(ge=0)] = 1.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
) -> list[SampleRequest]:
    """Show each problem of the prompt sampler `of` with a partner's answer (CORY, Ma et al. 2024).

    The partner answers each problem once; the text is stored in the row as `shown`. With `data` it is a query, and the
    most similar document is shown. Raise StepError if a problem exceeds the partner's context.
    """
    requests: list[SampleRequest] = of()
    sampling = Sampling(temperature, max_completion_length)
    answers = replies(guest(partner), [request.row["prompt"] for request in requests], n=1, sampling=sampling, rng=rng)
    texts = [of_problem[0] for of_problem in answers if of_problem is not None]
    if len(texts) < len(answers):
        raise StepError("prompt_sampler observed: a problem exceeds the partner's context; lower max_completion_length")
    shown = look_up_documents(texts, data)
    return [
        replace(request, row=show_answer(request.row, text, template) | {"shown": text})
        for request, text in zip(requests, shown, strict=True)
    ]
