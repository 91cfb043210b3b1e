"""Completions that other policies have shared as text; the receiver tokenises, scores and weights them itself."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from learning.data.chat import encode_completion
from learning.data.rows import Row
from learning.data.shards import find_shards, scan_shards
from learning.generation.services.rescoring import compute_likelihoods
from learning.lookup import Inner, RewardFunction
from learning.samples.sample import Sample, by_group
from learning.sampling.sampler import Sampler, scoring
from learning.sampling.trajectories import SCHEMA
from schemas.errors import StepError
from schemas.references import TrajectoriesRef

STEM = "trajectories"
READ = ("step", "group", "prompt_id", "source", "completion", "status")
"""The columns that are read of a peer: none of its tokens, log-probabilities, scores or advantages."""
Texts = tuple[str, tuple[str, ...]]
"""Id of a problem and the completions of one group."""


def shared(
    samples: list[Sample],
    rows: list[Row],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    others: Annotated[list[TrajectoriesRef], Field(min_length=1)],
    score: RewardFunction,
    own: Annotated[int, Field(ge=1)] | None = 4,
    external: Annotated[int, Field(ge=0)] = 4,
) -> list[Sample]:
    """Train on `own` groups of this iteration and `external` ones shared by peers (SAPO, Amico et al. 2025, section 3).

    A peer shares text: the receiver's tokenizer gives the tokens, its current weights the log-probabilities, its
    rewards the scores. Groups of equal rewards are not drawn: own ones by their reward, a peer's by `score`. If fewer
    groups are left, fewer are drawn; `own: null` keeps every own group. The problems of peers are looked up in `rows`
    by id; unknown problems, and texts that exceed the model's context, are skipped. Raise StepError if peers have
    shared only unknown problems.
    """
    judge: Inner = score
    groups = by_group(samples)
    kept = list(groups)
    if own is not None:
        kept = draw_groups([g for g, members in groups.items() if scores_differ([t.reward for t in members])], own, rng)
    row_of = {row["id"]: row for row in rows}
    pool = [texts for folder in others for texts in read_groups(str(folder)) if texts[0] in row_of]
    if external and pool == [] and any(read_groups(str(folder)) for folder in others):
        raise StepError(
            "extra_samples shared: the peers' problems are not among this stage's prompts; "
            "give all peers problems with the same ids"
        )
    received: list[Sample] = []
    for place in rng.permutation(len(pool)) if external else []:
        members = make_samples(row_of, pool[int(place)], sampler)
        if len(members) > 1 and scores_differ(judge(**scoring(members))):
            received += members
        if len(by_group(received)) == external:
            break
    return [*(sample for g in kept for sample in groups[g]), *_compute_logprobs(received, sampler)]


def read_groups(folder: str) -> list[Texts]:
    """Return the groups that a peer sampled itself, with finished completions only; none if it has not shared yet."""
    return _read_groups(folder) if any(Path(folder).glob(f"{STEM}*.parquet")) else []


@lru_cache(maxsize=16)
def _read_groups(folder: str) -> list[Texts]:
    groups: dict[tuple[int, int, str], list[str]] = {}
    schema = pa.schema([SCHEMA.field(name) for name in READ])
    for batch in scan_shards(find_shards(Path(folder), STEM), schema, STEM):
        for line in batch.to_pylist():
            if line["source"] == "policy" and line["status"] == "done":
                groups.setdefault((line["step"], line["group"], line["prompt_id"]), []).append(line["completion"])
    return [(prompt, tuple(texts)) for (_, _, prompt), texts in groups.items()]


def make_samples(row_of: Mapping[str, dict[str, Any]], texts: Texts, sampler: Sampler) -> list[Sample]:
    """Return a peer's group as samples without log-probabilities, except texts that exceed the model's context."""
    row, group = row_of[texts[0]], sampler.new_group()
    prompt = sampler.encode(row["prompt"], row)
    samples = []
    for text in texts[1]:
        ids = encode_completion(sampler.policy.tokenizer, [{"role": "assistant", "content": text}])
        if len(prompt) + len(ids) <= sampler.policy.max_length:
            samples.append(Sample(row, group, "peer", prompt, ids, None, "stop", text))
    return samples


def _compute_logprobs(samples: list[Sample], sampler: Sampler) -> list[Sample]:
    """Set the log-probabilities of the samples' tokens under the current weights, and return the samples."""
    for members in by_group(samples).values():
        pairs = [(sample.prompt_ids, sample.completion_ids) for sample in members]
        likelihoods = compute_likelihoods(sampler.policy.model, pairs, sampler.sampling.temperature)
        for sample, values in zip(members, likelihoods, strict=True):
            sample.logprobs = values
    return samples


def scores_differ(scores: Sequence[float | None]) -> bool:
    """Return whether the scores differ; equal scores give no advantage."""
    values = {score for score in scores if score is not None}
    return len(values) > 1


def draw_groups(groups: list[int], count: int, rng: np.random.Generator) -> list[int]:
    """Return `count` random groups, or all if there are fewer, in their order."""
    chosen = rng.choice(len(groups), size=min(count, len(groups)), replace=False) if groups else []
    return [groups[i] for i in sorted(int(i) for i in chosen)]
