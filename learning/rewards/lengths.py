"""Rewards for the length of a completion, in sampled tokens or characters of its text.

A truncated completion counts with its truncated length. `formats.brevity` needs only the text; `overlong` and `shorter`
of the slot `reward_shaping` change existing rewards.
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from learning.lookup import Inner, RewardFunction
from learning.rewards.composite import score_selected
from learning.samples.sample import Sample
from schemas.errors import StepError
from schemas.number_schedules import ScheduledFloat

Unit = Literal["tokens", "characters"]


def measure_length(sample: Sample, unit: str) -> int:
    """Return the length of a completion in sampled tokens (the stop token included) or characters."""
    return len(sample.completion_ids) - sample.given if unit == "tokens" else len(sample.text)


def target(
    samples: list[Sample],
    *,
    length_wanted: Annotated[int, Field(ge=0)],
    unit: Unit = "tokens",
    per_unit: Annotated[float, Field(gt=0)] = 0.01,
    floor: float = -1.0,
) -> list[float | None]:
    """−per_unit · |length − length_wanted|, at least `floor` (LCPO-exact of L1, Aggarwal & Welleck 2025)."""
    return [max(-per_unit * abs(measure_length(sample, unit) - length_wanted), floor) for sample in samples]


def at_most(
    samples: list[Sample],
    *,
    length_wanted: Annotated[int, Field(ge=0)],
    unit: Unit = "tokens",
    per_unit: Annotated[float, Field(gt=0)] = 0.01,
    midpoint: float = 0.5,
) -> list[float | None]:
    """clip(per_unit · (length_wanted − length) + midpoint, 0, 1): factor of correctness in LCPO-max of L1 (2025)."""
    return [min(max(per_unit * (length_wanted - measure_length(t, unit)) + midpoint, 0.0), 1.0) for t in samples]


def cosine(
    samples: list[Sample],
    *,
    of: RewardFunction,
    longest: Annotated[int, Field(ge=1)],
    unit: Unit = "tokens",
    right_short: ScheduledFloat = 2.0,
    right_long: ScheduledFloat = 1.0,
    wrong_short: ScheduledFloat = -10.0,
    wrong_long: ScheduledFloat = 0.0,
    exceeded: ScheduledFloat = -10.0,
    at_least: float = 1.0,
) -> list[float | None]:
    """Cosine length reward: half a cosine from length 0 to `longest` (Yeo et al. 2025, eq. 1).

    A completion is right if the reward `of` is at least `at_least`. Right ones lose with length; wrong ones gain, so
    that they try longer. A length of `longest` or more gets `exceeded`.
    """
    judge: Inner = of
    scores: list[float | None] = []
    for sample, score in zip(samples, score_selected(judge, range(len(samples))), strict=True):
        size = measure_length(sample, unit)
        if score is None:
            scores.append(None)
        elif size >= longest:
            scores.append(exceeded)
        else:
            start, end = (right_short, right_long) if score >= at_least else (wrong_short, wrong_long)
            scores.append(end + (start - end) * (1 + math.cos(math.pi * size / longest)) / 2)
    return scores


def tiered(
    samples: list[Sample],
    *,
    tiers: Annotated[dict[int, float], Field(min_length=1)],
    unit: Unit = "tokens",
) -> list[float | None]:
    """A score for each range of lengths: `{0: 0.0, 64: -0.5}` is 0 below 64 and −0.5 from there on.

    Raise StepError unless the lowest starts at 0.
    """
    if min(tiers) != 0:
        raise StepError(f"reward lengths.tiered: the lowest tier starts at {min(tiers)}; add one at 0")
    return [tiers[max(start for start in tiers if start <= measure_length(t, unit))] for t in samples]
