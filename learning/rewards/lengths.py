"""Rewards for how long a completion is: in sampled tokens, or in characters of its text.

A completion that the limit cut has the length at which it was cut. `formats.brevity` is the one that needs no samples,
`overlong` and `shorter` in the slot `reward_shaping` act on rewards that exist already.
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from learning.lookup import Inner, RewardFunction
from learning.rewards.composite import asked
from learning.samples.sample import Sample
from schemas.errors import StepError
from schemas.schedules import ScheduledFloat

Unit = Literal["tokens", "characters"]


def length(sample: Sample, unit: str) -> int:
    """How long a completion is: tokens that were sampled (the stop token is one), or characters."""
    return len(sample.completion_ids) - sample.given if unit == "tokens" else len(sample.text)


def target(
    samples: list[Sample],
    *,
    length_wanted: Annotated[int, Field(ge=0)],
    unit: Unit = "tokens",
    per_unit: Annotated[float, Field(gt=0)] = 0.01,
    floor: float = -1.0,
) -> list[float | None]:
    """−per_unit · |length − wanted|, not below `floor` (LCPO-exact of L1, Aggarwal & Welleck 2025)."""
    return [max(-per_unit * abs(length(sample, unit) - length_wanted), floor) for sample in samples]


def at_most(
    samples: list[Sample],
    *,
    length_wanted: Annotated[int, Field(ge=0)],
    unit: Unit = "tokens",
    per_unit: Annotated[float, Field(gt=0)] = 0.01,
    midpoint: float = 0.5,
) -> list[float | None]:
    """clip(per_unit · (wanted − length) + midpoint, 0, 1); a factor on correctness in LCPO-max of L1 (2025)."""
    return [min(max(per_unit * (length_wanted - length(t, unit)) + midpoint, 0.0), 1.0) for t in samples]


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
    """Half a cosine from length 0 to `longest`, other ends for right and wrong ones (Yeo et al. 2025, eq. 1).

    `of` says what is right (`at_least`). Right ones lose by length, wrong ones gain: they should try longer. A length
    of `longest` or more earns `exceeded`.
    """
    judge: Inner = of
    found: list[float | None] = []
    for sample, score in zip(samples, asked(judge, range(len(samples))), strict=True):
        size = length(sample, unit)
        if score is None:
            found.append(None)
        elif size >= longest:
            found.append(exceeded)
        else:
            start, end = (right_short, right_long) if score >= at_least else (wrong_short, wrong_long)
            found.append(end + (start - end) * (1 + math.cos(math.pi * size / longest)) / 2)
    return found


def tiered(
    samples: list[Sample],
    *,
    tiers: Annotated[dict[int, float], Field(min_length=1)],
    unit: Unit = "tokens",
) -> list[float | None]:
    """A score for each range of lengths: `{0: 0.0, 64: -0.5}` is 0 below 64 and −0.5 from there on.

    Raises StepError unless one of them starts at 0.
    """
    if min(tiers) != 0:
        raise StepError(f"reward lengths.tiered: the first tier must start at 0, not at {min(tiers)}")
    return [tiers[max(start for start in tiers if start <= length(t, unit))] for t in samples]
