"""Estimate the cost of a plan from the most similar earlier artifacts; steps without any have unknown cost."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from flows.planning.difference import list_changes
from flows.planning.explain import Verdict, explain_plan
from lineage.catalogue.index import Index, query_index
from lineage.layout import Layout
from lineage.records import Record
from lineage.reports.spending import Cost, sum_costs
from lineage.tracing.history import find_earlier
from schemas.budget import Budget, Prices
from schemas.plan import Plan, Step

SIMILAR = 3
"""Most settings in which an artifact of a step of another name may differ to serve as an estimate."""


@dataclass(frozen=True)
class Estimate:
    """The expected cost of a step; for a HIT, the original cost, which is saved."""

    cost: Cost | None
    """Estimated cost; None: no similar step ran before."""
    basis: str
    """Run that the estimate comes from, and the number of settings in which it differed."""
    is_hit: bool


class Forecast:
    """The steps and cost of a run, computed once before its first step."""

    def __init__(self, plan: Plan, layout: Layout) -> None:
        self.plan, self.layout = plan, layout

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """Return HIT or MISS and the reason, by step."""
        return explain_plan(self.plan, self.layout)

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Return the estimates by step."""
        return estimate_steps(self.plan, self.layout, self.verdicts)


def estimate_steps(plan: Plan, layout: Layout, verdicts: Mapping[str, Verdict]) -> dict[str, Estimate]:
    """Return the estimates by step."""
    return query_index(
        layout, lambda index: {s.name: _estimate_step(s, plan, index, verdicts[s.name][0]) for s in plan.steps}
    )


def _estimate_step(step: Step, plan: Plan, index: Index, verdict: str) -> Estimate:
    if verdict == "HIT" and (made := index.record(step.key)):
        return Estimate(compute_cost(made, step), f"run {made['run']}", True)
    records, same_name = find_earlier(index, step.kind, step.name, plan.recipe)
    by_distance = [(_count_changes(record, step), place, record) for place, record in enumerate(records)]
    if not by_distance:
        return Estimate(None, "", False)
    distance, _, nearest = min(by_distance, key=lambda candidate: candidate[:2])
    if not same_name and distance > SIMILAR:
        return Estimate(None, "", False)
    return Estimate(compute_cost(nearest, step), _describe_basis(nearest, distance, step), False)


def _count_changes(record: Record, step: Step) -> int:
    return sum(1 for _ in list_changes(record["identity"]["settings"], step.identity["settings"]))


def _describe_basis(record: Record, distance: int, step: Step) -> str:
    origin = "" if record["step"] == step.name else f"{record['recipe']}.{record['step']} of "
    other = {0: "", 1: ", 1 setting differs"}.get(distance, f", {distance} settings differ")
    return f"{origin}run {record['run']}{other}"


def compute_cost(record: Record, step: Step) -> Cost:
    """Return the cost of an artifact with the resources that the step requests now."""
    paid = float(record.get("paid") or 0.0), int(record.get("paid_tokens") or 0)
    return cost_of_holding(step, record["seconds"], int(record.get("tokens") or 0), *paid)


def cost_of_holding(step: Step, seconds: float, tokens: int, paid: float = 0.0, paid_tokens: int = 0) -> Cost:
    """Return the cost of holding a step's resources, with its tokens and what servers charged."""
    resources = step.resources
    return Cost(seconds, seconds * resources.all_cpus, seconds * resources.all_gpus, tokens, paid, paid_tokens)


def predict_costs(estimates: Mapping[str, Estimate]) -> dict[str, Cost | None]:
    """Return the predicted cost of each step that will run; None where it is unknown."""
    return {name: estimate.cost for name, estimate in estimates.items() if not estimate.is_hit}


def describe_costs(plan: Plan, estimates: Mapping[str, Estimate]) -> Iterator[str]:
    """Yield what the plan will spend and what it saves, as sentences."""
    prices = plan.budget.prices if plan.budget else Prices()
    costs = predict_costs(estimates)
    unknown = [name for name, cost in costs.items() if cost is None]
    if len(unknown) < len(costs):
        without = f", without {', '.join(unknown)}: no similar step ran before" if unknown else ""
        yield f"estimated cost: {format_cost(sum_costs(costs.values()), prices)}{without}"
    elif unknown:
        yield "estimated cost: unknown, no similar steps ran before"
    if saved := [estimate.cost for estimate in estimates.values() if estimate.is_hit]:
        yield f"saved by cached steps: {format_cost(sum_costs(saved), prices)}"


def describe_excess(plan: Plan, estimates: Mapping[str, Estimate]) -> Iterator[str]:
    """Yield every limit of the budget that the plan is predicted to exceed."""
    if plan.budget is None:
        return
    for line in list_exceeded_limits(plan.budget, sum_costs(predict_costs(estimates).values())):
        yield f"the plan is predicted to exceed its budget: {line}"


def list_exceeded_limits(budget: Budget, cost: Cost) -> list[str]:
    """Return the limits of a budget that a cost exceeds, as `120 core-seconds, the limit is 100`."""
    money = cost.money(budget.prices)
    facts = (
        ("core-seconds", cost.core_seconds, budget.core_seconds),
        ("GPU-seconds", cost.gpu_seconds, budget.gpu_seconds),
        ("tokens", cost.tokens, budget.tokens),
        ("of money", money, budget.money),
    )
    return [
        f"{_format_number(amount)} {what}, the limit is {_format_number(limit)}"
        for what, amount, limit in facts
        if limit is not None and amount is not None and amount > limit
    ]


def format_cost(cost: Cost, prices: Prices) -> str:
    """Return a cost as text, with money only where there are prices."""
    parts = [f"{_format_number(cost.core_seconds)} core-seconds"]
    parts += [f"{_format_number(cost.gpu_seconds)} GPU-seconds"] if cost.gpu_seconds else []
    parts += [f"{cost.tokens:,} tokens"] if cost.tokens else []
    money = cost.money(prices)
    return ", ".join(parts) + (f", {_format_number(money)} of money" if money is not None else "")


def _format_number(value: float) -> str:
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
