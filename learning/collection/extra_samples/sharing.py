"""Completions that other policies have shared as text: judged, weighed and learnt from as the receiver sees them."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from learning.data.chat import encode_completion
from learning.data.shards import find_shards, scan
from learning.lookup import Inner, RewardFunction
from learning.samples.sample import Sample, by_group
from learning.sampling.sampler import Sampler, scoring
from learning.sampling.trajectories import SCHEMA
from schemas.errors import StepError
from schemas.references import TrajectoriesRef

STEM = "trajectories"
READ = ("step", "group", "prompt_id", "source", "completion", "status")
"""All that is read of a peer: no token, log-probability, score or advantage of its own."""
Texts = tuple[str, tuple[str, ...]]
"""Id of a problem, and the completions of one group."""


def shared(
    samples: list[Sample],
    rows: list[dict[str, Any]],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    others: Annotated[list[TrajectoriesRef], Field(min_length=1)],
    score: RewardFunction,
    own: Annotated[int, Field(ge=1)] | None = 4,
    external: Annotated[int, Field(ge=0)] = 4,
) -> list[Sample]:
    """`own` groups of this iteration and `external` ones that peers have shared (SAPO, Amico et al. 2025, section 3).

    A peer's completion is its text: the receiver's tokenizer gives the tokens, its weights now the behaviour's
    log-probabilities, its own rewards the scores. A group that earns the same throughout says nothing and is not drawn:
    an own one by its reward, a peer's by `score`. Where fewer are left, fewer are drawn; `own: null` keeps every own
    group as it is. The problems of peers are found among `rows` by id; others, and texts that the model has no room
    for, are left out. Raises StepError where peers have shared, but no problem of this stage.
    """
    judge: Inner = score
    groups = by_group(samples)
    kept = list(groups)
    if own is not None:
        kept = drawn([g for g, members in groups.items() if telling([t.reward for t in members])], own, rng)
    known = {row["id"]: row for row in rows}
    pool = [texts for folder in others for texts in groups_of(str(folder)) if texts[0] in known]
    if external and pool == [] and any(groups_of(str(folder)) for folder in others):
        raise StepError(
            "extra_samples shared: the peers' problems are not among this stage's prompts; share one set of ids"
        )
    found: list[Sample] = []
    for place in rng.permutation(len(pool)) if external else []:
        members = received(known, pool[int(place)], sampler)
        if len(members) > 1 and telling(judge(**scoring(members))):
            found += members
        if len(by_group(found)) == external:
            break
    return [*(sample for g in kept for sample in groups[g]), *weighed(found, sampler)]


def groups_of(folder: str) -> list[Texts]:
    """What a peer sampled itself, group by group, whole completions only; nothing where it has not shared anything."""
    return _groups_of(folder) if any(Path(folder).glob(f"{STEM}*.parquet")) else []


@lru_cache(maxsize=16)
def _groups_of(folder: str) -> list[Texts]:
    found: dict[tuple[int, int, str], list[str]] = {}
    wanted = pa.schema([SCHEMA.field(name) for name in READ])
    for batch in scan(find_shards(Path(folder), STEM), wanted, STEM):
        for line in batch.to_pylist():
            if line["source"] == "policy" and line["status"] == "done":
                found.setdefault((line["step"], line["group"], line["prompt_id"]), []).append(line["completion"])
    return [(prompt, tuple(texts)) for (_, _, prompt), texts in found.items()]


def received(known: Mapping[str, dict[str, Any]], texts: Texts, sampler: Sampler) -> list[Sample]:
    """A peer's group as samples of this model, without log-probabilities yet; what it has no room for is left out."""
    row, group = known[texts[0]], sampler.new_group()
    prompt = sampler.encode(row["prompt"])
    found = []
    for text in texts[1]:
        ids = encode_completion(sampler.policy.tokenizer, [{"role": "assistant", "content": text}])
        if len(prompt) + len(ids) <= sampler.policy.max_length:
            found.append(Sample(row, group, "peer", prompt, ids, None, "stop", text))
    return found


def weighed(samples: list[Sample], sampler: Sampler) -> list[Sample]:
    """Samples with the log-probabilities that this model's weights give their tokens; no version sampled them here."""
    for members in by_group(samples).values():
        pairs = [(sample.prompt_ids, sample.completion_ids) for sample in members]
        for sample, values in zip(members, sampler.likelihoods(pairs), strict=True):
            sample.logprobs = values
    return samples


def telling(scores: Sequence[float | None]) -> bool:
    """Whether the scores differ: else no advantage comes of them."""
    values = {score for score in scores if score is not None}
    return len(values) > 1


def drawn(groups: list[int], count: int, rng: np.random.Generator) -> list[int]:
    """`count` of the groups, or all where there are no more, in their order."""
    chosen = rng.choice(len(groups), size=min(count, len(groups)), replace=False) if groups else []
    return [groups[i] for i in sorted(int(i) for i in chosen)]
