"""Rewards of a story's next sentence: neither dull nor absurd, and possible after what has happened."""

import math
from typing import Annotated, Any

from pydantic import Field

from learning.data.chat import encode_completion
from learning.sampling.verdicts import guest, logprobs
from learning.toy_tasks.stories import incoherence
from schemas.references import PolicyRef


def curiosity(
    rows: list[dict[str, Any]],
    completions: list[str],
    *,
    model: PolicyRef,
    moderate: Annotated[float, Field(gt=0)] = 0.5,
    width: Annotated[float, Field(gt=0)] = 0.25,
    penalty: Annotated[float, Field(ge=0)] = 1.0,
) -> list[float | None]:
    """Value of the sentence by how much it surprises `model` (nats per token) and by the rules that it breaks.

    None where sentence and story are longer than the model holds.
    """
    judge = guest(model)
    asked = [
        (
            judge.encode(row["prompt"]),
            encode_completion(judge.policy.tokenizer, [{"role": "assistant", "content": text}]),
        )
        for row, text in zip(rows, completions, strict=True)
    ]
    found = []
    for row, text, lps in zip(rows, completions, logprobs(judge, asked), strict=True):
        broken = incoherence(row["prompt"][-1]["content"].split("\n"), text)
        found.append(None if lps is None else compute_value(-sum(lps) / len(lps), broken, moderate, width, penalty))
    return found


def compute_value(surprisal: float, broken: int, moderate: float, width: float, penalty: float) -> float:
    """An inverted U of surprisal, 1 at `moderate`, falling off within `width`; `penalty` for every broken rule.

    Moderate surprise arouses most curiosity (Berlyne 1960; COS(M+O)S); the paper's own index is another one.
    """
    return math.exp(-(((surprisal - moderate) / width) ** 2) / 2) - penalty * broken
