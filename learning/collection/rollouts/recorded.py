"""Rollout of recorded completions: nothing is sampled, so that a policy is trained offline."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.collection.extra_samples.extra_samples import load_completions
from learning.data.chat import encode_completion
from learning.data.steps import encode_steps, split_steps
from learning.samples.engine_protocol import Turn
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler
from schemas.errors import StepError
from schemas.references import ChatRef


def recorded(
    requests: list[SampleRequest],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    data: ChatRef,
    separator: Annotated[str, Field(min_length=1)] | None = None,
) -> list[Sample]:
    """Offline: the completions of `data` with the ids of the problems, drawn at random, in the place of samples.

    A group has as many as the stage asks for, without replacement. They are scored by the stage's rewards, and have no
    log-probabilities of a sampling policy (`external_T`): use a policy loss that needs none, such as
    `direct_advantage`. With `separator` every step is a turn of its own, for operations on turns. Raise StepError for
    a problem with fewer completions, or for one that exceeds the model's context.
    """
    texts_of, samples = load_completions(str(data)), list[Sample]()
    for request in requests:
        texts = texts_of.get(request.row["id"], [])
        if len(texts) < request.n:
            raise StepError(
                f"rollout recorded: problem {request.row['id']} has {len(texts)} completions in `data`, and a group "
                f"has {request.n}; lower num_generations, or give the problems from which the data were made"
            )
        group = sampler.new_group() if request.group is None else request.group
        for place in rng.choice(len(texts), size=request.n, replace=False):
            samples.append(_make_sample(request, texts[int(place)], separator, group, sampler))
    return samples


def _make_sample(request: SampleRequest, text: str, separator: str | None, group: int, sampler: Sampler) -> Sample:
    """Return a completion as a sample whose steps are turns."""
    tokenizer, row = sampler.policy.tokenizer, request.row
    prompt = sampler.encode(request.prompt or row["prompt"], row)
    *steps, last = [text] if separator is None else split_steps(text, separator)
    ids, turns = _encode_turns(sampler, steps, separator or "", row)
    ids += encode_completion(tokenizer, [{"role": "assistant", "content": last}])
    if len(prompt) + len(ids) > sampler.policy.max_length:
        raise StepError(
            f"rollout recorded: problem {row['id']} and its completion have {len(prompt) + len(ids)} tokens, but the "
            f"model's context is {sampler.policy.max_length}; drop long rows in a curate stage"
        )
    versions = [sampler.step] * len(ids)
    return Sample(row, group, "expert", prompt, ids, None, "stop", text, versions=versions, turns=turns)


def _encode_turns(
    sampler: Sampler, steps: Sequence[str], separator: str, row: dict[str, object]
) -> tuple[list[int], list[Turn]]:
    """Return the ids of steps with the separators after them, as a process reward model reads them, and their turns."""
    if not steps:
        return [], []
    encoded = encode_steps(sampler.policy.tokenizer, [{"role": "user", "content": "?"}], steps, separator)
    borders = [-1, *encoded.ends]
    return encoded.completion, [Turn(end - start) for start, end in pairwise(borders)]
