"""What a run has spent while it goes on, and whether that passes its budget."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import yaml
from pydantic import ValidationError

from flows.planning.estimate import Outlook, holding, over, predicted, said
from lineage.layout import Layout
from lineage.reports.spending import Cost, Spending, read_spending, sum_costs, write_spending
from schemas.budget import MONEY_NEEDS_PRICES, Budget, Prices
from schemas.errors import PlanError
from schemas.plan import Plan, Step

EVERY = 5.0
"""Seconds between notes of what running steps spend: so much a killed run may forget."""

ADVICE = "raise `budget:` and run again, or go on with `posttrain resume --budget KEY=VALUE`"


@dataclass
class _Try:
    """A step under way."""

    step: Step
    since: float
    tokens: int = 0
    paid: float = 0.0
    paid_tokens: int = 0


class Ledger:
    """Counts what the steps of a run hold and how many tokens they tell; asked from several threads.

    What an interrupted run spent before counts too. `clock` returns seconds.
    """

    def __init__(self, plan: Plan, layout: Layout, run: str, foreseen: dict[str, Cost | None],
                 clock: Callable[[], float] = time.monotonic):  # fmt: skip
        self.budget, self.layout, self.run, self.clock = plan.budget, layout, run, clock
        before = read_spending(layout, run)
        self.foreseen = before.predicted if before else foreseen
        self.spent = dict(before.spent) if before else {}
        self.tries: dict[str, _Try] = {}
        self.lock = threading.Lock()
        self.noted = self.clock()

    def begin(self, step: Step) -> None:
        """A try of a step has started."""
        with self.lock:
            self.tries[step.name] = _Try(step, self.clock())

    def tokens(self, step: Step, number: int, paid: float | None = None) -> None:
        """A running step has sampled, or trained on, so many more tokens; `paid`: what a server charged for them."""
        with self.lock:
            if (one := self.tries.get(step.name)) is not None:
                one.tokens += number
                one.paid, one.paid_tokens = one.paid + (paid or 0.0), one.paid_tokens + (paid is not None) * number

    def end(self, step: Step, made: tuple[float, ...] | None = None) -> None:
        """A try has ended; `made` are seconds and tokens by the manifest of an artifact that this run made.

        What servers charged, and for how many tokens, may follow. They count where the try was over before anything was
        heard of it.
        """
        with self.lock:
            cost = self._cost(self.tries.pop(step.name)) if step.name in self.tries else Cost()
            if made is not None:
                told = (cost.seconds, cost.tokens, cost.paid, cost.paid_tokens)
                cost = holding(step, *map(max, zip_longest(told, made, fillvalue=0)))
            self.spent[step.name] = self.spent.get(step.name, Cost()) + cost
            self._note()

    def passed(self) -> list[str]:
        """The limits of the budget that the run has passed, in words; whatever `on_exceed` says."""
        if self.budget is None:
            return []
        with self.lock:
            running = [self._cost(one) for one in self.tries.values()]
            if self.clock() - self.noted > EVERY:
                self._note()
            return over(self.budget, sum_costs([*self.spent.values(), *running]))

    def stops(self) -> str:
        """Why nothing may go on or begin; empty while the budget lasts or only warns."""
        if self.budget is None or self.budget.on_exceed != "stop":
            return ""
        passed = self.passed()
        return f"the run's budget is spent: {'; '.join(passed)}" if passed else ""

    def _cost(self, one: _Try) -> Cost:
        return holding(one.step, self.clock() - one.since, one.tokens, one.paid, one.paid_tokens)

    def _note(self) -> None:
        running = {name: self.spent.get(name, Cost()) + self._cost(one) for name, one in self.tries.items()}
        write_spending(self.layout, self.run, Spending(self.foreseen, self.spent | running))
        self.noted = self.clock()


def open_ledger(run: str, outlook: Outlook) -> Ledger:
    """The ledger of a run that begins or goes on; what it will cost is foreseen once, before its first step."""
    return Ledger(outlook.plan, outlook.layout, run, predicted(outlook.estimates))


def spending_lines(plan: Plan, layout: Layout, run: str) -> Iterator[str]:
    """What a run spent beside what was foreseen, and the limits it passed; nothing for a run that spent nothing."""
    noted = read_spending(layout, run)
    if noted is None:
        return
    prices, spent = plan.budget.prices if plan.budget else Prices(), sum_costs(noted.spent.values())
    foreseen = [cost for cost in noted.predicted.values() if cost is not None]
    before = f"; estimated: {said(sum_costs(foreseen), prices)}" if foreseen else ""
    yield f"spent: {said(spent, prices)}{before}"
    if plan.budget and (passed := over(plan.budget, spent)):
        advice = f"; {ADVICE}" if plan.budget.on_exceed == "stop" else ""
        yield f"the run passed its budget: {'; '.join(passed)}{advice}"


def with_budget(plan: Plan, changes: Sequence[str]) -> Plan:
    """The plan with another budget, from `core_seconds=600` and the like. Raises PlanError."""
    if not changes:
        return plan
    values: dict[str, Any] = plan.budget.model_dump() if plan.budget else {}
    try:
        for change in changes:
            _set(values, change)
        budget = Budget.model_validate(values)
        if budget.lacks_prices(step.settings for step in plan.steps):
            raise PlanError(f"--budget: {MONEY_NEEDS_PRICES}")
        return plan.model_copy(update={"budget": budget})
    except (ValidationError, yaml.YAMLError) as error:
        wrong = error.errors() if isinstance(error, ValidationError) else []
        told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong) or "not YAML"
        raise PlanError(f"--budget: {told}\n    keys: {', '.join(Budget.model_fields)}") from error


def _set(values: dict[str, Any], change: str) -> None:
    name, equals, text = change.partition("=")
    *parents, last = name.split(".")
    place: Any = values
    for parent in parents:
        place = place.setdefault(parent, {}) if isinstance(place, dict) else None
    if not equals or not isinstance(place, dict):
        raise PlanError(f"--budget wants key=value, as core_seconds=600, this is {change!r}")
    place[last] = yaml.safe_load(text)
