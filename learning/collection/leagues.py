"""Opponents from the past: how often each past version of a policy plays (the slot `policies.<name>.league.weights`).

A function may ask for `age_K` (iterations since each of the K versions was kept, oldest version first), `won_K` (share
of its episodes that the trained policy won against it, a draw counting half; 0.5 before it has played) and `played_K`
(the number of these episodes). It returns K weights, which need not add up to 1.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field


def uniform(age_K: np.ndarray) -> np.ndarray:
    """Every version equally often (fictitious self-play)."""
    return np.ones(len(age_K))


def recent(age_K: np.ndarray, *, half_life: Annotated[float, Field(gt=0)] = 20.0) -> np.ndarray:
    """Versions less often the older they are: half as often for every `half_life` iterations."""
    return 0.5 ** (age_K / half_life)


def prioritised(
    won_K: np.ndarray,
    *,
    by: Literal["hard", "even"] = "hard",
    power: Annotated[float, Field(gt=0)] = 2.0,
    floor: Annotated[float, Field(ge=0)] = 0.01,
) -> np.ndarray:
    """Versions against which the policy wins least (AlphaStar: prioritised fictitious self-play, 2019).

    `hard`: (1 − won)^`power`; `even`: won · (1 − won), most often those that are its equals. Every version has at least
    the weight `floor`, so that one which is always beaten is not forgotten.
    """
    weight_K = (1 - won_K) ** power if by == "hard" else won_K * (1 - won_K)
    return np.maximum(weight_K, floor)
