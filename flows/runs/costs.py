"""What runs cost in total, by month or by recipe, from their records of spending."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.table import Table

from flows.execution.run_log import list_runs, read_plan
from lineage.layout import Layout
from lineage.reports.formatting import format_duration, format_number
from lineage.reports.spending import Cost, Spending, compare_with_estimate, read_spending, sum_costs
from schemas.base import JsonObject
from schemas.budget import Prices

Grouping = Literal["month", "recipe"]


@dataclass(frozen=True)
class TotalCost:
    """What the runs of one month (`2026-11`, UTC) or of one recipe spent, with failed attempts."""

    group: str
    runs: int
    cost: Cost
    money: float | None
    """Each run by the prices of its recipe; None if no recipe has prices."""

    def to_json(self) -> JsonObject:
        """Return the total as one flat object."""
        return {"group": self.group, "runs": self.runs, **asdict(self.cost), "money": self.money}


def sum_run_costs(layout: Layout, by: Grouping) -> list[TotalCost]:
    """Return the totals in the order of their groups; runs that executed no step count as runs without cost."""
    groups: dict[str, list[tuple[Cost, float | None]]] = {}
    for month, recipe, cost, money in _read_costs(layout):
        groups.setdefault(month if by == "month" else recipe, []).append((cost, money))
    return [_sum_group(group, costs) for group, costs in sorted(groups.items())]


def make_cost_record(run: str, layout: Layout) -> JsonObject:
    """Return what a run spent, and the estimate beside what the same steps spent; `estimate` is null without one."""
    spending = read_spending(layout, run) or Spending({}, {})
    compared = compare_with_estimate(spending)
    return {
        "spent": asdict(sum_costs(spending.spent.values())),
        "estimate": compared
        and {
            "estimated": asdict(compared.estimated),
            "spent": asdict(compared.spent),
            "not_estimated": compared.without_estimate,
        },
    }


def _read_costs(layout: Layout) -> Iterator[tuple[str, str, Cost, float | None]]:
    """Yield month, recipe, cost and money of every run."""
    for run in list_runs(layout):
        plan, spending = read_plan(layout, run), read_spending(layout, run)
        cost = sum_costs(spending.spent.values()) if spending else Cost()
        yield f"{run[:4]}-{run[4:6]}", plan.recipe, cost, cost.money(plan.budget.prices if plan.budget else Prices())


def _sum_group(group: str, costs: Sequence[tuple[Cost, float | None]]) -> TotalCost:
    paid = [money for _, money in costs if money is not None]
    return TotalCost(group, len(costs), sum_costs(cost for cost, _ in costs), sum(paid) if paid else None)


def make_cost_table(totals: Sequence[TotalCost], by: Grouping) -> Table:
    """Return a table with one row per total."""
    table = Table(by, "runs", "time of steps", "core-hours", "GPU-hours", "tokens", "money")
    for total in totals:
        cost = total.cost
        hours = (format_number(round(seconds / 3600, 3)) for seconds in (cost.core_seconds, cost.gpu_seconds))
        money = "" if total.money is None else f"{total.money:,.2f}"
        time, tokens = format_duration(cost.seconds), format_number(cost.tokens)
        table.add_row(total.group, str(total.runs), time, *hours, tokens, money)
    return table
