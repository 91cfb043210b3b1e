"""The cost of a run, step by step: estimated, spent in all tries, and saved by cached steps."""

from dataclasses import dataclass, field

from lineage.layout import Layout
from lineage.reports.spending import (
    Cost,
    EstimateComparison,
    Spending,
    compare_with_estimate,
    read_spending,
    sum_costs,
)
from schemas.budget import Prices
from schemas.manifest import Manifest
from schemas.plan import Plan, Step


@dataclass(frozen=True)
class Line:
    """The costs of one step or of all steps; None where a cost is unknown or does not apply."""

    step: str
    state: str
    estimated: Cost | None
    spent: Cost | None
    saved: Cost | None
    peak_rss: int | None = None
    """Bytes."""


@dataclass(frozen=True)
class Costs:
    """The lines of a run, their sums, and the amounts of money if prices are given."""

    lines: list[Line]
    total: Line
    unknown: list[str]
    """Steps without an estimate: no earlier run recorded a cost."""
    money: dict[str, float] = field(default_factory=dict)
    """estimated, spent, saved, and compared, what the estimated steps spent; empty without prices."""
    compared: EstimateComparison | None = None
    """Estimate and spending of the steps that have both."""


def compute_costs(plan: Plan, made: dict[str, Manifest], state: dict[str, str], layout: Layout, run: str) -> Costs:
    """Return the costs that the report shows."""
    spending = read_spending(layout, run) or Spending({}, {})
    lines = [_make_line(step, made.get(step.name), state[step.name], spending, run) for step in plan.steps]
    total = Line(
        step="all steps",
        state="",
        estimated=sum_costs(line.estimated for line in lines),
        spent=sum_costs(line.spent for line in lines),
        saved=sum_costs(line.saved for line in lines),
        peak_rss=max((line.peak_rss for line in lines if line.peak_rss), default=None),
    )
    unknown = [name for name, cost in spending.predicted.items() if cost is None]
    spent = {line.step: line.spent for line in lines if line.spent is not None}
    compared = compare_with_estimate(Spending(spending.predicted, spent))
    return Costs(lines, total, unknown, _sum_money(plan, total, compared), compared)


def _make_line(step: Step, manifest: Manifest | None, state: str, noted: Spending, run: str) -> Line:
    spent, saved = noted.spent.get(step.name), None
    if manifest is not None:
        cost = _measure_cost(manifest, step)
        if manifest.run == run:
            spent = spent or cost
        elif state == "cached":
            saved = cost
    return Line(step.name, state, noted.predicted.get(step.name), spent, saved, manifest and manifest.peak_rss)


def _measure_cost(manifest: Manifest, step: Step) -> Cost:
    seconds, resources = manifest.seconds, step.resources
    charges = manifest.tokens, manifest.paid, manifest.paid_tokens
    return Cost(seconds, seconds * resources.all_cpus, seconds * resources.all_gpus, *charges)


def _sum_money(plan: Plan, total: Line, compared: EstimateComparison | None) -> dict[str, float]:
    prices = plan.budget.prices if plan.budget else Prices()
    sums = {what: (getattr(total, what) or Cost()).money(prices) for what in ("estimated", "spent", "saved")}
    sums["compared"] = (compared.spent if compared else Cost()).money(prices)
    has_price = any(money is not None for money in sums.values())
    return {what: money or 0.0 for what, money in sums.items()} if has_price else {}
