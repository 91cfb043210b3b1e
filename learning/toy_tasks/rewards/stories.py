"""Rewards for the next sentence of a story: of moderate surprise and consistent with the story."""

import math
from typing import Annotated

from pydantic import Field

from learning.data.chat import encode_completion
from learning.data.rows import Row
from learning.sampling.verdicts import guest, logprobs
from learning.toy_tasks.stories import count_broken_rules
from schemas.references import PolicyRef


def curiosity(
    rows: list[Row],
    completions: list[str],
    *,
    model: PolicyRef,
    moderate: Annotated[float, Field(gt=0)] = 0.5,
    width: Annotated[float, Field(gt=0)] = 0.25,
    penalty: Annotated[float, Field(ge=0)] = 1.0,
) -> list[float | None]:
    """Value of the sentence by its surprise under `model` (nats per token) and the rules that it breaks.

    None if sentence and story exceed the model's context.
    """
    judge = guest(model)
    pairs = [
        (
            judge.encode(row["prompt"]),
            encode_completion(judge.policy.tokenizer, [{"role": "assistant", "content": text}]),
        )
        for row, text in zip(rows, completions, strict=True)
    ]
    scores: list[float | None] = []
    for row, text, lps in zip(rows, completions, logprobs(judge, pairs), strict=True):
        broken = count_broken_rules(row["prompt"][-1]["content"].split("\n"), text)
        scores.append(None if lps is None else compute_value(-sum(lps) / len(lps), broken, moderate, width, penalty))
    return scores


def compute_value(surprisal: float, broken: int, moderate: float, width: float, penalty: float) -> float:
    """Return an inverted U of surprisal, 1 at `moderate` and of width `width`, minus `penalty` per broken rule.

    Moderate surprise arouses most curiosity (Berlyne 1960; COS(M+O)S); the paper uses another index.
    """
    return math.exp(-(((surprisal - moderate) / width) ** 2) / 2) - penalty * broken
