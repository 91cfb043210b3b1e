"""Estimate the cost of a plan from comparable steps that ran before; steps without any have unknown cost."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from flows.planning.comparable_work import Comparison, compare_work
from flows.planning.explain import Verdict, explain_plan
from lineage.catalogue.index import Index, query_index
from lineage.layout import Layout
from lineage.records import Record
from lineage.reports.formatting import format_duration
from lineage.reports.spending import Cost, sum_costs
from lineage.tracing.history import list_earlier
from schemas.budget import Budget, Prices
from schemas.plan import Plan, Step

SHOWN = 3
"""Most settings or inputs that are named."""


@dataclass(frozen=True)
class Estimate:
    """The expected cost of a step; for a HIT, the original cost, which is saved."""

    cost: Cost | None
    """That of the comparable step of median duration; None: no comparable step ran before."""
    basis: str
    """Where the estimate comes from and how sure it is, or why there is none."""
    is_hit: bool
    certainty: str = ""
    """How sure the estimate is, in a few words."""


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
    nearest: list[str] = []
    for records in list_earlier(index, step.kind, step.name, plan.recipe):
        compared = [(record, compare_work(record, step, plan, index)) for record in records]
        if found := [(record, work) for record, work in compared if not work.differences]:
            return _estimate_from(found, step)
        nearest = nearest or min((work.differences for _, work in compared), key=len)
    return Estimate(None, f"earlier ones differ in {', '.join(nearest[:SHOWN])}" if nearest else "", False)


def _estimate_from(found: list[tuple[Record, Comparison]], step: Step) -> Estimate:
    """Return the cost of the comparable step of median duration, with what it rests on."""
    same_inputs = [pair for pair in found if not pair[1].unknown_inputs]
    chosen = sorted(same_inputs or found, key=lambda pair: pair[0]["seconds"])
    middle = chosen[(len(chosen) - 1) // 2][0]
    shortest, longest = chosen[0][0]["seconds"], chosen[-1][0]["seconds"]
    certainty = "1 comparable run" if len(chosen) == 1 else f"{len(chosen)} comparable runs"
    if len(chosen) > 1:
        certainty += f": {format_duration(shortest)} to {format_duration(longest)}"
    if not same_inputs:
        certainty += f"; if {', '.join(chosen[0][1].unknown_inputs[:SHOWN])} is as large as then"
    return Estimate(compute_cost(middle, step), f"run {middle['run']}, {certainty}", False, certainty)


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
        without = f", without {', '.join(unknown)}: no comparable step ran before" if unknown else ""
        yield f"estimated cost: {format_cost(sum_costs(costs.values()), prices)}{without}"
    elif unknown:
        yield "estimated cost: unknown, no comparable steps ran before"
    for name in unknown:
        if estimates[name].basis:
            yield f"no estimate for {name}: {estimates[name].basis}"
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
