"""Rewards by duel: the probability that a completion is preferred to others of its group or of another policy."""

from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.lookup import DuelFunction, Inner
from learning.samples.engine_protocol import Sampling
from learning.sampling.verdicts import guest, replies
from schemas.references import PolicyRef
from schemas.use import EngineUse


def win_rate(rows: list[Row], completions: list[str], groups: list[int], *, by: DuelFunction) -> list[float | None]:
    """Estimate of P(completion beats the sampling policy): its mean over all duels of the group (SPPO, Wu et al. 2024).

    A completion draws against itself, so that the rates of a group average exactly ½ under a fair judge (section 4).
    """
    duel: Inner = by
    members: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    rates: list[float | None] = [None] * len(completions)
    for places in members.values():
        for i in places:
            wins = [0.5 if i == j else duel(row=rows[i], first=completions[i], second=completions[j]) for j in places]
            rates[i] = sum(wins) / len(wins)
    return rates


def against(
    rows: list[Row],
    completions: list[str],
    rng: np.random.Generator,
    *,
    by: DuelFunction,
    opponent: PolicyRef,
    engine: EngineUse | None = None,
    temperature: Annotated[float, Field(ge=0)] = 0.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
) -> list[float | None]:
    """P(completion beats the answer of `opponent` to the same problem); None if it exceeds the opponent's context."""
    duel: Inner = by
    prompts, sampling = [row["prompt"] for row in rows], Sampling(temperature, max_completion_length)
    answers = replies(guest(opponent, engine), prompts, n=1, sampling=sampling, rng=rng)
    return [
        None if texts is None else duel(row=row, first=completion, second=texts[0])
        for row, completion, texts in zip(rows, completions, answers, strict=True)
    ]
