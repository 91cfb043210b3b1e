"""What a run has spent while it goes on, and whether that passes its budget."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from flows.planning.estimate import Forecast, cost_of_holding, format_cost, list_exceeded_limits, predict_costs
from lineage.layout import Layout
from lineage.reports.spending import Cost, Spending, read_spending, sum_costs, write_spending
from schemas.budget import MONEY_NEEDS_PRICES, Budget, Prices
from schemas.errors import PlanError
from schemas.plan import Plan, Step

EVERY = 5.0
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
    """What the manifest of an artifact says its step consumed."""

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
        foreseen: dict[str, Cost | None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.budget, self.layout, self.run, self.clock = plan.budget, layout, run, clock
        before = read_spending(layout, run)
        self.foreseen = before.predicted if before else foreseen
        self.spent = dict(before.spent) if before else {}
        self.attempts: dict[str, _Attempt] = {}
        self.lock = threading.Lock()
        self.noted = self.clock()

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
        """Add the cost of an attempt that ended; `made` is what the artifact says that the step consumed.

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
            self._note()

    def list_exceeded(self) -> list[str]:
        """Return the limits of the budget that the run has exceeded, whatever `on_exceed` says."""
        if self.budget is None:
            return []
        with self.lock:
            running = [self._cost(attempt) for attempt in self.attempts.values()]
            if self.clock() - self.noted > EVERY:
                self._note()
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

    def _note(self) -> None:
        running = {name: self.spent.get(name, Cost()) + self._cost(one) for name, one in self.attempts.items()}
        write_spending(self.layout, self.run, Spending(self.foreseen, self.spent | running))
        self.noted = self.clock()


def open_ledger(run: str, outlook: Forecast) -> Ledger:
    """The ledger of a run that begins or goes on; what it will cost is foreseen once, before its first step."""
    return Ledger(outlook.plan, outlook.layout, run, predict_costs(outlook.estimates))


def describe_spending(plan: Plan, layout: Layout, run: str) -> Iterator[str]:
    """What a run spent beside what was foreseen, and the limits it passed; nothing for a run that spent nothing."""
    noted = read_spending(layout, run)
    if noted is None:
        return
    prices, spent = plan.budget.prices if plan.budget else Prices(), sum_costs(noted.spent.values())
    foreseen = [cost for cost in noted.predicted.values() if cost is not None]
    before = f"; estimated: {format_cost(sum_costs(foreseen), prices)}" if foreseen else ""
    yield f"spent: {format_cost(spent, prices)}{before}"
    if plan.budget and (passed := list_exceeded_limits(plan.budget, spent)):
        advice = f"; {ADVICE}" if plan.budget.on_exceed == "stop" else ""
        yield f"the run passed its budget: {'; '.join(passed)}{advice}"


def change_budget(plan: Plan, changes: Sequence[str]) -> Plan:
    """The plan with another budget, from `core_seconds=600` and the like. Raises PlanError."""
    if not changes:
        return plan
    values: dict[str, Any] = plan.budget.model_dump() if plan.budget else {}
    try:
        for change in changes:
            _set_key(values, change)
        budget = Budget.model_validate(values)
        if budget.lacks_prices(step.settings for step in plan.steps):
            raise PlanError(f"--budget: {MONEY_NEEDS_PRICES}")
        return plan.model_copy(update={"budget": budget})
    except (ValidationError, yaml.YAMLError) as error:
        wrong = error.errors() if isinstance(error, ValidationError) else []
        told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong) or "not YAML"
        raise PlanError(f"--budget: {told}\n    keys: {', '.join(Budget.model_fields)}") from error


def _set_key(values: dict[str, Any], change: str) -> None:
    name, equals, text = change.partition("=")
    *parents, last = name.split(".")
    place: Any = values
    for parent in parents:
        place = place.setdefault(parent, {}) if isinstance(place, dict) else None
    if not equals or not isinstance(place, dict):
        raise PlanError(f"--budget wants key=value, as core_seconds=600, this is {change!r}")
    place[last] = yaml.safe_load(text)
