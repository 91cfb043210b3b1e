"""Rewards by duel: how likely a completion is preferred, to the others of its group or to another policy's."""

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.lookup import Inner
from learning.samples.engine_protocol import Sampling
from learning.sampling.verdicts import guest, replies
from schemas.references import PolicyRef
from schemas.use import DuelUse, EngineUse

Row = dict[str, Any]


def win_rate(rows: list[Row], completions: list[str], groups: list[int], *, by: DuelUse) -> list[float | None]:
    """Estimate of P(completion beats the policy that sampled the group): its row mean in the matrix of all duels.

    Against itself a completion draws, so that the rates of a group average exactly ½ where the judge is fair (SPPO, Wu
    et al. 2024, section 4).
    """
    duel: Inner = by
    members: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    found: list[float | None] = [None] * len(completions)
    for places in members.values():
        for i in places:
            wins = [0.5 if i == j else duel(row=rows[i], first=completions[i], second=completions[j]) for j in places]
            found[i] = sum(wins) / len(wins)
    return found


def against(
    rows: list[Row],
    completions: list[str],
    rng: np.random.Generator,
    *,
    by: DuelUse,
    opponent: PolicyRef,
    engine: EngineUse | None = None,
    temperature: Annotated[float, Field(ge=0)] = 0.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
) -> list[float | None]:
    """P(completion beats what `opponent` says to the same problem); None where the opponent has no room for a word."""
    duel: Inner = by
    asked = [row["prompt"] for row in rows]
    said = replies(guest(opponent, engine), asked, n=1, sampling=Sampling(temperature, max_completion_length), rng=rng)
    return [
        None if texts is None else duel(row=row, first=completion, second=texts[0])
        for row, completion, texts in zip(rows, completions, said, strict=True)
    ]
