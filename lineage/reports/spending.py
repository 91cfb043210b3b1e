"""The estimated and the spent cost of a run, in `cost.json` of its folder."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from lineage.layout import Layout
from schemas.atomic_write import write_text_atomically
from schemas.budget import Prices

FILE = "cost.json"


@dataclass(frozen=True)
class Cost:
    """Of a step or of many; core- and GPU-seconds are wall time times what is held meanwhile."""

    seconds: float = 0.0
    core_seconds: float = 0.0
    gpu_seconds: float = 0.0
    tokens: int = 0
    """Sampled or trained on."""
    paid: float = 0.0
    """What servers charged for tokens."""
    paid_tokens: int = 0
    """Those of the tokens that they charged for: `million_tokens` is the price of the others."""

    def money(self, prices: Prices) -> float | None:
        """Return the cost in money, or None without any price."""
        return prices.money(self.core_seconds, self.gpu_seconds, self.tokens - self.paid_tokens, self.paid)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(one + two for one, two in zip(asdict(self).values(), asdict(other).values(), strict=True)))


@dataclass(frozen=True)
class Spending:
    """Of a run, by step."""

    predicted: dict[str, Cost | None]
    """Before its first step, of the steps that were not there; None where no earlier run says anything."""
    spent: dict[str, Cost]
    """All tries of the run."""


class EstimateComparison(NamedTuple):
    """Estimate and spending of the same steps: those that have both."""

    estimated: Cost
    spent: Cost
    without_estimate: list[str]
    """Steps that spent something and are in neither sum."""


def compare_with_estimate(spending: Spending) -> EstimateComparison | None:
    """Return the estimated and the spent cost of the steps that have both; None if there is no such step."""
    estimated = {name: cost for name, cost in spending.predicted.items() if cost is not None and name in spending.spent}
    if not estimated:
        return None
    without = [name for name in spending.spent if name not in estimated]
    return EstimateComparison(sum_costs(estimated.values()), sum_costs(map(spending.spent.get, estimated)), without)


def sum_costs(costs: Iterable[Cost | None]) -> Cost:
    """Return the sum of costs; unknown ones are left out."""
    return sum((cost for cost in costs if cost is not None), Cost())


def read_spending(layout: Layout, run: str) -> Spending | None:
    """Return the recorded spending of a run, or None."""
    try:
        noted = json.loads((layout.run(run) / FILE).read_bytes())
        predicted = {step: Cost(**cost) if cost else None for step, cost in noted["predicted"].items()}
        return Spending(predicted, {step: Cost(**cost) for step, cost in noted["spent"].items()})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_spending(layout: Layout, run: str, spending: Spending) -> None:
    """Write the spending of a run atomically."""
    write_text_atomically(layout.run(run) / FILE, json.dumps(asdict(spending), indent=1))
