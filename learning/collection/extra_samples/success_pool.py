"""Successes of an earlier stage, read from its trajectories with their tokens and log-probabilities."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from learning.data.chat import decode
from learning.data.rows import Row
from learning.data.shards import find_shards, scan_shards
from learning.samples.engine_protocol import Generation, Turn
from learning.samples.sample import Sample, SampleRequest
from learning.sampling.sampler import Sampler
from learning.sampling.trajectories import EPISODES, KEPT, SCHEMA
from schemas.errors import StepError

STEM = "trajectories"
READ = ("prompt_id", "source", "completion", "token_ids", "logprobs", "scores", "status")


@lru_cache(maxsize=8)
def load_successes(folder: str, reward: str | None, at_least: float) -> dict[str, list[Row]]:
    """Return, by problem, the finished completions of a policy that scored `at_least` in a trajectories artifact.

    `reward` names the score (null: the first). Raise StepError if a trajectory has no such score.
    """
    # Artifacts never change, so the cache is never stale.
    shards = find_shards(Path(folder), STEM)
    names = pq.ParquetFile(shards[0]).schema_arrow.names
    more = [field for field in (EPISODES.field("turns"), KEPT) if field.name in names]
    read_schema = pa.schema([*(SCHEMA.field(name) for name in READ), *more])
    successes: dict[str, list[Row]] = {}
    for batch in scan_shards(shards, read_schema, STEM):
        for line in batch.to_pylist():
            if line["source"] == "policy" and line["status"] == "done" and _read_score(line, reward) >= at_least:
                successes.setdefault(line["prompt_id"], []).append(line)
    return successes


def _read_score(line: Row, reward: str | None) -> float:
    """Return a score of a trajectory, −inf if it could not be scored."""
    scores = dict(line["scores"])
    name = reward or next(iter(scores), None)
    if name is None or name not in scores:
        raise StepError(f"extra_samples collected: `data` has no score {name!r}; it has: {', '.join(scores) or 'none'}")
    return -float("inf") if scores[name] is None else scores[name]


def restore_success(line: Row, row: Row, group: int, sampler: Sampler) -> Sample:
    """Return a stored success as a sample in a group of this iteration, to be scored by the stage's rewards.

    Its version is 0, as if sampled at the start of the stage, and its entropies are unknown. Raise StepError if the
    policy's tokenizer decodes its tokens to another text.
    """
    turns = [
        Turn(
            turn["sampled"],
            turn["observed"],
            turn["reward"],
            turn["seconds"] or 0.0,
            turn["ok"],
            rebuilt=turn["rebuilt"],
            asks=turn["asks"],
        )
        for turn in line.get("turns") or ()
    ]
    ids = line["token_ids"]
    if decode(sampler.policy.tokenizer, ids) != line["completion"]:
        raise StepError(
            f"extra_samples collected: the tokens of {row['id']} in `data` are not of the policy's tokenizer; "
            "collect them with a model of the same tokenizer"
        )
    stored = Generation(ids, line["logprobs"], "stop", turns=turns, kept=line.get("kept") or [])
    sample = sampler.build_sample(SampleRequest(row, source="replay"), group, stored)
    return replace(sample, versions=[0] * len(ids))
