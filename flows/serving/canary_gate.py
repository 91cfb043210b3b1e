"""The gate of a canary: when the feedback about two models is looked at, and what a look decides."""

from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from learning.evaluation.two_groups import estimate_group_difference
from schemas.base import JsonObject
from schemas.errors import PlanError

Verdict = Literal["passed", "stopped", "open"]


@dataclass(frozen=True)
class CanaryGate:
    """What the difference of mean scores, challenger minus champion, must show."""

    min_samples: int = 100
    """Clients with feedback that each model needs for the first look; the k-th look needs k times as many."""
    min_delta: float = 0.0
    """The canary passes if the lower bound reaches this, and stops if the upper bound is below it."""
    confidence: float = 0.95
    """It passes wrongly, and stops wrongly, with probability (1 − confidence) / 2 at most, over all its looks."""


@dataclass(frozen=True)
class Look:
    """What the feedback showed at one look."""

    number: int
    tail: float
    """Probability with which each bound may be wrong at this look."""
    champion_samples: int
    champion_score: float
    challenger_samples: int
    challenger_score: float
    difference: float
    low: float
    high: float
    verdict: Verdict

    def facts(self) -> JsonObject:
        """Return the look as JSON."""
        return asdict(self)

    def describe(self) -> str:
        """Return the look as one line."""
        return (
            f"look {self.number}: challenger {self.challenger_score:.4f} of {self.challenger_samples} clients, "
            f"champion {self.champion_score:.4f} of {self.champion_samples}, difference {self.difference:+.4f} "
            f"[{self.low:+.4f}, {self.high:+.4f}]"
        )


def is_due(gate: CanaryGate, looks: int, champion: int, challenger: int) -> bool:
    """Return whether there is enough feedback for the look after `looks` earlier ones."""
    return min(champion, challenger) >= gate.min_samples * (looks + 1)


def compute_look_tail(gate: CanaryGate, number: int) -> float:
    """Return the probability with which a bound of the `number`-th look may be wrong.

    The whole error is spent over all looks, since 1/2 + 1/6 + 1/12 + … = 1 for 1 / (k (k + 1)).
    """
    return (1 - gate.confidence) / 2 / (number * (number + 1))


def look(gate: CanaryGate, number: int, champion_M: np.ndarray, challenger_N: np.ndarray) -> Look:
    """Return what the mean scores of the clients of each model show at the `number`-th look."""
    tail = compute_look_tail(gate, number)
    gain = estimate_group_difference(challenger_N, champion_M, tail)
    verdict: Verdict = "passed" if gain.low >= gate.min_delta else "stopped" if gain.high < gate.min_delta else "open"
    return Look(
        number,
        tail,
        len(champion_M),
        float(champion_M.mean()),
        len(challenger_N),
        float(challenger_N.mean()),
        gain.value,
        gain.low,
        gain.high,
        verdict,
    )


def read_share(text: str) -> float:
    """Return a share between 0 and 1 from `10%` or `0.1`. Raise PlanError for anything else."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 0.5:
        raise PlanError(f"--canary {text}: give the challenger's share of the clients, up to half of them: 10% or 0.1")
    return share
