"""Solutions of a model with a label for every step: how often the model succeeds from there (Monte Carlo)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from learning.data.messages import make_batch
from learning.data.rows import SCHEMAS, Row, open_row_writer, read_rows
from learning.data.steps import encode_steps, split_steps
from learning.lookup import Inner, RewardFunction
from learning.samples.engine_protocol import Sampling
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler, scoring
from learning.sampling.verdicts import guest
from schemas.errors import StepError

AtLeast1 = Annotated[int, Field(ge=1)]
Prefix = tuple[int, tuple[str, ...]]
"""Number of a problem, and the first steps of a solution."""


def label_steps(
    context: Any,
    *,
    reward: RewardFunction,
    solutions: AtLeast1 = 4,
    completions: AtLeast1 = 4,
    separator: Annotated[str, Field(min_length=1)] = "\n",
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    max_completion_length: AtLeast1 = 256,
    start: Annotated[str, Field(min_length=1)] = "start",
) -> dict[str, float]:
    """Sample `solutions` of every problem, and from every step of them `completions`, whose mean reward is its label.

    The inputs are `model` and `prompts`. The output `labels` has rows for a process reward model (Math-Shepherd, Wang
    et al. 2024), `solutions` the same solutions as completions of their problems. Steps are what `separator` divides. A
    step that ends with m of n successes is labelled m/n, the last step with the reward of the solution itself. The
    metadata have the label of the problem before any step as `start`, which the critic of DAPO (Liu et al. 2024) needs.
    Solutions that a reward cannot score are left out. Raise StepError for a reward outside of 0 to 1.
    """
    sampling = Sampling(temperature, max_completion_length)
    sampler = replace(guest(context.input("model")), sampling=sampling, seed=context.seed)
    rows = read_rows(context.input("prompts"), "prompts")
    asked = [(place, row) for place, row in enumerate(rows) for _ in range(solutions)]
    found = _sample(sampler, [SampleRequest(row, solutions) for row in rows])
    steps = [split_steps(sample.text, separator) for sample in found]
    ends = score_samples(reward, found)
    values = measure_prefixes(
        sampler, reward, rows, _list_prefixes([place for place, _ in asked], steps), completions, separator
    )
    labelled: list[Row] = []
    for (place, row), own, end in zip(asked, steps, ends, strict=True):
        states = [values.get((place, tuple(own[:count]))) for count in range(len(own))]
        if end is None or any(value is None for value in states):
            continue
        text = separator.join(own)
        number = len(labelled)
        metadata = {**json.loads(row["metadata"] or "{}"), start: states[0]}
        labelled.append(
            row
            | {"completion": [{"role": "assistant", "content": text}], "labels": [*states[1:], end]}
            | {"steps": [{"role": "assistant", "content": one} for one in own]}
            | {"metadata": json.dumps(metadata), "number": number}
        )
    if not labelled:
        raise StepError("label_steps: no solution could be scored; check that the reward can score these problems")
    _write(context, labelled)
    return {
        "solutions": len(labelled),
        "left_out": len(asked) - len(labelled),
        "steps": sum(len(row["labels"]) for row in labelled),
        "successes": sum(row["labels"][-1] for row in labelled) / len(labelled),
    }


def _write(context: Any, labelled: Sequence[Row]) -> None:
    """Write both outputs; a row of labels has an id of its own, a solution that of its problem."""
    for port, artifact_type in (("labels", "step_labels"), ("solutions", "chat")):
        named = [row | {"id": f"{row['id']}.{row['number']}"} for row in labelled] if port == "labels" else labelled
        with open_row_writer(context.output(port), artifact_type) as writer:
            writer.write(make_batch(named, SCHEMAS[artifact_type]))


def _list_prefixes(places: Sequence[int], steps: Sequence[Sequence[str]]) -> list[Prefix]:
    """Return the beginnings of all solutions, without their last steps, each of a problem once."""
    every = [(place, tuple(own[:count])) for place, own in zip(places, steps, strict=True) for count in range(len(own))]
    return list(dict.fromkeys(every))


def measure_prefixes(
    sampler: Sampler,
    reward: RewardFunction,
    rows: Sequence[Row],
    prefixes: Sequence[Prefix],
    completions: int,
    separator: str,
) -> dict[Prefix, float | None]:
    """Return the mean reward of `completions` solutions that begin with each prefix; None where none has a score."""
    requests: list[SampleRequest] = []
    for place, steps in prefixes:
        row = rows[place]
        begin = encode_steps(sampler.policy.tokenizer, row["prompt"], steps, separator, row).completion
        requests.append(SampleRequest(row, completions, begin=tuple(begin)))
    scores = iter(score_samples(reward, _sample(sampler, requests)))
    means: dict[Prefix, float | None] = {}
    for prefix in prefixes:
        known = [score for _ in range(completions) if (score := next(scores)) is not None]
        means[prefix] = sum(known) / len(known) if known else None
    return means


def _sample(sampler: Sampler, requests: Sequence[SampleRequest]) -> list[Sample]:
    return sampler.sample(requests) if requests else []


def score_samples(reward: RewardFunction, samples: Sequence[Sample]) -> list[float | None]:
    """Return the reward of each sample. Raise StepError for one outside of 0 to 1, which is no share."""
    judge: Inner = reward
    scores = judge(**scoring(list(samples))) if samples else []
    if wrong := [score for score in scores if score is not None and not 0 <= score <= 1]:
        raise StepError(f"label_steps: a reward of {wrong[0]} is no label of a step; use one from 0 to 1")
    return scores
