"""Rewards for a continuation that surprises moderately: an index of curiosity (COS(M+O)S, Materzok 2025)."""

import math
from typing import Annotated

from pydantic import Field

from learning.data.chat import encode_completion
from learning.data.rows import Row
from learning.lookup import Inner, RewardFunction
from learning.rewards.composite import score_selected
from learning.sampling.verdicts import guest, logprobs
from schemas.references import PolicyRef


def moderate(
    rows: list[Row],
    completions: list[str],
    *,
    model: PolicyRef,
    moderate: Annotated[float, Field(gt=0)] = 0.5,
    width: Annotated[float, Field(gt=0)] = 0.25,
    faults: list[RewardFunction] = [],  # noqa: B006 (never changed; a recipe needs the default to be readable)
    penalty: Annotated[float, Field(ge=0)] = 1.0,
) -> list[float | None]:
    """Value of a continuation by its surprise under `model` (nats per token), less `penalty` per fault.

    An inverted U of the surprise, 1 at `moderate` and of width `width`. Each reward of `faults` gives a number of
    faults, such as incoherent events. None if prompt and completion exceed the model's context.
    """
    judge = guest(model)
    pairs = [
        (
            judge.encode(row["prompt"]),
            encode_completion(judge.policy.tokenizer, [{"role": "assistant", "content": text}]),
        )
        for row, text in zip(rows, completions, strict=True)
    ]
    counting: list[Inner] = faults
    counts = [score_selected(one, range(len(completions))) for one in counting]
    scores: list[float | None] = []
    for i, lps in enumerate(logprobs(judge, pairs)):
        broken = sum(count[i] or 0.0 for count in counts)
        scores.append(None if lps is None else compute_value(-sum(lps) / len(lps), broken, moderate, width, penalty))
    return scores


def compute_value(surprisal: float, broken: float, moderate: float, width: float, penalty: float) -> float:
    """Return an inverted U of surprisal, 1 at `moderate` and of width `width`, minus `penalty` per fault.

    Moderate surprise arouses most curiosity (Berlyne 1960; COS(M+O)S); the paper uses another index.
    """
    return math.exp(-(((surprisal - moderate) / width) ** 2) / 2) - penalty * broken
