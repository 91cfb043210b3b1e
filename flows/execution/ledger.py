"""The ledger of a running run: what it has spent, and whether that exceeds its budget."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from flows.planning.estimate import Forecast, cost_of_holding, format_cost, list_exceeded_limits, predict_costs
from lineage.layout import Layout
from lineage.reports.spending import Cost, Spending, compare_with_estimate, read_spending, sum_costs, write_spending
from schemas.base import JsonObject
from schemas.budget import MONEY_NEEDS_PRICES, Budget, Prices
from schemas.errors import PlanError
from schemas.plan import Plan, Step

WRITE_SECONDS = 5.0
"""Seconds between notes of what running steps spend: so much a killed run may forget."""

ADVICE = "raise `budget:` and run again, or go on with `posttrain resume --budget KEY=VALUE`"


@dataclass
class _Attempt:
    """A running attempt at a step."""

    step: Step
    since: float
    tokens: int = 0
    paid: float = 0.0
    paid_tokens: int = 0


class Consumption(NamedTuple):
    """What the last attempt at a step consumed, by the manifest of its artifact."""

    seconds: float
    tokens: int = 0
    paid: float = 0.0
    paid_tokens: int = 0


class Ledger:
    """Counts the resources that the steps of a run hold and the tokens they report; called from several threads.

    What an interrupted run spent before counts too. `clock` returns seconds.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        run: str,
        predicted: dict[str, Cost | None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.budget, self.layout, self.run, self.clock = plan.budget, layout, run, clock
        before = read_spending(layout, run)
        self.predicted = before.predicted if before else predicted
        self.spent = dict(before.spent) if before else {}
        self.attempts: dict[str, _Attempt] = {}
        self.lock = threading.Lock()
        self.last_write = self.clock()

    def begin(self, step: Step) -> None:
        """Start to count an attempt at a step."""
        with self.lock:
            self.attempts[step.name] = _Attempt(step, self.clock())

    def add_tokens(self, step: Step, number: int, paid: float | None = None) -> None:
        """Count tokens that a running step sampled or trained on; `paid` is what a server charged for them."""
        with self.lock:
            if (attempt := self.attempts.get(step.name)) is not None:
                attempt.tokens += number
                attempt.paid += paid or 0.0
                attempt.paid_tokens += (paid is not None) * number

    def end(self, step: Step, made: Consumption | None = None) -> None:
        """Add the cost of an attempt that ended; `made` is what the step consumed by the manifest of its artifact.

        The larger of both counts: an attempt may end before its reports are read.
        """
        with self.lock:
            cost = self._cost(self.attempts.pop(step.name)) if step.name in self.attempts else Cost()
            if made is not None:
                cost = cost_of_holding(
                    step,
                    max(cost.seconds, made.seconds),
                    max(cost.tokens, made.tokens),
                    max(cost.paid, made.paid),
                    max(cost.paid_tokens, made.paid_tokens),
                )
            self.spent[step.name] = self.spent.get(step.name, Cost()) + cost
            self._write()

    def list_exceeded(self) -> list[str]:
        """Return the limits of the budget that the run has exceeded, for any `on_exceed`."""
        if self.budget is None:
            return []
        with self.lock:
            running = [self._cost(attempt) for attempt in self.attempts.values()]
            if self.clock() - self.last_write > WRITE_SECONDS:
                self._write()
            return list_exceeded_limits(self.budget, sum_costs([*self.spent.values(), *running]))

    def find_stop_reason(self) -> str:
        """Return why nothing may continue or begin; empty while the budget lasts or only warns."""
        if self.budget is None or self.budget.on_exceed != "stop":
            return ""
        exceeded = self.list_exceeded()
        return f"the run's budget is spent: {'; '.join(exceeded)}" if exceeded else ""

    def _cost(self, attempt: _Attempt) -> Cost:
        seconds = self.clock() - attempt.since
        return cost_of_holding(attempt.step, seconds, attempt.tokens, attempt.paid, attempt.paid_tokens)

    def _write(self) -> None:
        running = {name: self.spent.get(name, Cost()) + self._cost(one) for name, one in self.attempts.items()}
        write_spending(self.layout, self.run, Spending(self.predicted, self.spent | running))
        self.last_write = self.clock()


def open_ledger(run: str, forecast: Forecast) -> Ledger:
    """Return the ledger of a run that begins or resumes; its cost is predicted once, before its first step."""
    return Ledger(forecast.plan, forecast.layout, run, predict_costs(forecast.estimates))


def describe_spending(plan: Plan, layout: Layout, run: str) -> Iterator[str]:
    """Yield what a run spent next to the prediction, and the limits it exceeded; nothing if it spent nothing."""
    spending = read_spending(layout, run)
    if spending is None:
        return
    prices, spent = plan.budget.prices if plan.budget else Prices(), sum_costs(spending.spent.values())
    yield f"spent: {format_cost(spent, prices)}{_describe_estimate(spending, prices)}"
    if plan.budget and (passed := list_exceeded_limits(plan.budget, spent)):
        advice = f"; {ADVICE}" if plan.budget.on_exceed == "stop" else ""
        yield f"the run exceeded its budget: {'; '.join(passed)}{advice}"


def _describe_estimate(spending: Spending, prices: Prices) -> str:
    """Return the estimate next to what the same steps spent, and the steps without one; empty without any estimate."""
    compared = compare_with_estimate(spending)
    if compared is None:
        return ""
    estimated = f"; estimated: {format_cost(compared.estimated, prices)}"
    if not compared.without_estimate:
        return estimated
    without = ", ".join(compared.without_estimate)
    return f"{estimated} for steps that spent {format_cost(compared.spent, prices)}; not estimated: {without}"


def change_budget(plan: Plan, changes: Sequence[str]) -> Plan:
    """Return the plan with budget keys changed, as `core_seconds=600`. Raise PlanError if a change is not valid."""
    if not changes:
        return plan
    values: JsonObject = plan.budget.model_dump() if plan.budget else {}
    try:
        for change in changes:
            _set_key(values, change)
        budget = Budget.model_validate(values)
        if budget.lacks_prices(step.settings for step in plan.steps):
            raise PlanError(f"--budget: {MONEY_NEEDS_PRICES}")
        return plan.model_copy(update={"budget": budget})
    except (ValidationError, yaml.YAMLError) as error:
        wrong = error.errors() if isinstance(error, ValidationError) else []
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong) or "not YAML"
        raise PlanError(f"--budget: {problems}\n    keys: {', '.join(Budget.model_fields)}") from error


def _set_key(values: JsonObject, change: str) -> None:
    name, equals, text = change.partition("=")
    *parents, last = name.split(".")
    place: Any = values
    for parent in parents:
        place = place.setdefault(parent, {}) if isinstance(place, dict) else None
    if not equals or not isinstance(place, dict):
        raise PlanError(f"--budget {change!r}: not key=value; write it as core_seconds=600")
    place[last] = yaml.safe_load(text)
