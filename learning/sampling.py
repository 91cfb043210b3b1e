"""A model's completions of prompts rows and what rewards say of them, for data and for evaluation."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from learning.chat import decode, encode_prompt
from learning.engines.protocol import EngineProtocol, Request, Sampling
from learning.lookup import Bound
from schemas.errors import StepError
from schemas.schedules import Number, value_at

SAMPLES_PER_CALL = 4096
"""Samples asked of an engine at once; between calls progress is told."""


@dataclass(frozen=True)
class Sample:
    """One completion; `finish` is `length` where the limit cut it."""

    text: str
    finish: Literal["stop", "length"]


def sample_rows(
    engine: EngineProtocol,
    tokenizer: Any,
    rows: Sequence[dict[str, Any]],
    *,
    n: int,
    seed: int,
    sampling: Sampling,
    on_progress: Callable[[int, int], None],
) -> list[list[Sample]]:
    """`n` completions of every row; those of a row depend on the seed and the row's id, not on its neighbours.

    `on_progress` hears how many rows are done, and how many tokens were sampled since it was last asked.
    """
    made: list[list[Sample]] = []
    for some in chunks(rows, max(1, SAMPLES_PER_CALL // n)):
        requests = [Request(encode_prompt(tokenizer, row["prompt"]), n, row_seed(seed, row)) for row in some]
        tokens = 0
        for generations in engine.generate(requests, sampling):
            made.append([Sample(decode(tokenizer, g.token_ids), g.finish) for g in generations])
            tokens += sum(len(g.token_ids) for g in generations)
        on_progress(len(made), tokens)
    return made


def chunks(rows: Sequence[dict[str, Any]], size: int) -> Iterator[Sequence[dict[str, Any]]]:
    """The rows, `size` at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def row_seed(seed: int, row: dict[str, Any]) -> int:
    """Random stream of a row, below 2^63."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{row['id']}".encode()).digest()[:8], "big") >> 1


def best_of(groups: Sequence[Sequence[Sample]], scores: Sequence[float | None]) -> list[list[Sample]]:
    """Of every group the sample with the highest score, the first among equals; one without a score comes last."""
    left = iter(scores)
    of_groups = [[-math.inf if (s := next(left)) is None else s for _ in group] for group in groups]
    return [[group[of.index(max(of))]] for group, of in zip(groups, of_groups, strict=True)]


def weighted_scores(
    rewards: Sequence[Bound], weights: Sequence[Number], rows: list[dict[str, Any]], texts: list[str]
) -> list[float | None]:
    """Weighted sum of the rewards of each completion, None where one of them could not score it.

    Raises StepError when a reward gives another number of scores.
    """
    totals = [0.0] * len(texts)
    places = {row["id"]: i for i, row in enumerate({r["id"]: r for r in rows}.values())}
    have = {"rows": rows, "completions": texts, "groups": [places[row["id"]] for row in rows]}
    have |= {"sources": ["policy"] * len(rows), "step": 0, "seed": 0, "states": {}}
    for bound, weight in zip(rewards, weights, strict=True):
        scores = bound.ask(0, have)
        if len(scores) != len(texts):
            raise StepError(f"reward {bound.name}: {len(scores)} scores for {len(texts)} completions")
        factor = value_at(weight, 0)
        totals = [t + factor * (math.nan if s is None else float(s)) for t, s in zip(totals, scores, strict=True)]
    return [None if math.isnan(total) else total for total in totals]
