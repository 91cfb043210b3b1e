"""A pool of successes that another stage has sampled: read from its trajectories, tokens and log-probabilities kept."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from learning.data.chat import decode
from learning.data.shards import find_shards, scan
from learning.samples.engine_protocol import Generation, Turn
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler
from learning.sampling.trajectories import EPISODES, SCHEMA
from schemas.errors import StepError

STEM = "trajectories"
READ = ("prompt_id", "source", "completion", "token_ids", "logprobs", "scores", "status")


@lru_cache(maxsize=8)
def successes_of(folder: str, reward: str | None, at_least: float) -> dict[str, list[dict[str, Any]]]:
    """Completions of a trajectories artifact that a policy sampled, ended, and scored `at_least`, by their problem.

    `reward` names the score (null: the first). Kept: an artifact never changes. Raises StepError for a score that no
    trajectory has.
    """
    shards = find_shards(Path(folder), STEM)
    played = "turns" in pq.ParquetFile(shards[0]).schema_arrow.names
    schema = EPISODES if played else SCHEMA
    wanted = pa.schema([schema.field(name) for name in (*READ, *(("turns",) if played else ()))])
    found: dict[str, list[dict[str, Any]]] = {}
    for batch in scan(shards, wanted, STEM):
        for line in batch.to_pylist():
            if line["source"] == "policy" and line["status"] == "done" and _score(line, reward) >= at_least:
                found.setdefault(line["prompt_id"], []).append(line)
    return found


def _score(line: dict[str, Any], reward: str | None) -> float:
    scores = dict(line["scores"])
    name = reward or next(iter(scores), None)
    if name is None or name not in scores:
        raise StepError(f"extra_samples collected: `data` has no score {name!r}; it has: {', '.join(scores) or 'none'}")
    return -float("inf") if scores[name] is None else scores[name]


def pooled(line: dict[str, Any], row: dict[str, Any], group: int, sampler: Sampler) -> Sample:
    """A success of the pool in a group of this iteration; the stage's own rewards score it.

    It is taken to be as old as the stage: version 0. Its entropies are not known. Raises StepError where the tokens
    mean something else here.
    """
    turns = [
        Turn(one["sampled"], one["observed"], one["reward"], one["seconds"] or 0.0, one["ok"])
        for one in line.get("turns") or ()
    ]
    ids, whole = line["token_ids"], line["completion"]
    if decode(sampler.policy.tokenizer, ids) != whole:
        raise StepError(
            f"extra_samples collected: tokens of {row['id']} in `data` are another tokenizer's than the policy's"
        )
    made = sampler.build_sample(
        SampleRequest(row, source="replay"), group, Generation(ids, line["logprobs"], "stop", turns=turns)
    )
    return replace(made, versions=[0] * len(ids))
