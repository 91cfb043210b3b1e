"""Completions whose beginning is given, so that an iteration tries every way of answering."""

from typing import Annotated

from pydantic import Field

from learning.collection.prompt_samplers import choose_prompts
from learning.data.chat import encode_text
from learning.data.rows import Row
from learning.samples.sample import SampleRequest
from learning.sampling.sampler import Sampler
from schemas.errors import StepError


def forced_openings(
    rows: list[Row],
    num_groups: int,
    n: int,
    seed: int,
    step: int,
    sampler: Sampler,
    *,
    openings: Annotated[list[str], Field(min_length=1)],
    forced: Annotated[int, Field(ge=1)] = 1,
) -> list[SampleRequest]:
    """As `uniform`, with `forced` of the `n` completions begun by each of `openings`, the others free (A²FM 2025).

    All completions of a problem are one group. The tokens of an opening are context: they have no weight in the loss,
    while an opening that the policy writes by itself is trained on. Raise StepError if no completion would be free.
    """
    free = n - forced * len(openings)
    if free < 1:
        raise StepError(
            f"prompt_sampler forced_openings: {len(openings)} openings, {forced} times each, leave no free completion "
            f"of num_generations {n}; lower `forced` or raise num_generations"
        )
    begun = [tuple(encode_text(sampler.policy.tokenizer, opening)) for opening in openings]
    requests: list[SampleRequest] = []
    for group, i in enumerate(choose_prompts(len(rows), num_groups, seed, step)):
        requests.append(SampleRequest(rows[i], free, group=group))
        requests += [SampleRequest(rows[i], forced, begin=tokens, group=group) for tokens in begun]
    return requests
