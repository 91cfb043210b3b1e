"""The plan as a table, and why a step would run."""

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from flows.planning.difference import list_differences
from flows.planning.estimate import Estimate, Forecast, describe_costs, describe_excess
from flows.planning.explain import explain_plan
from flows.planning.facts_cache import FactsCache
from lineage.layout import Layout
from lineage.reports.formatting import format_duration
from lineage.tracing.history import find_latest
from schemas.errors import PlanError
from schemas.plan import Plan
from schemas.suggestions import suggest


def make_plan_table(plan: Plan, layout: Layout) -> Table:
    """Return a table with one row per step: HIT or MISS and why, what it reads and needs, its time."""
    from flows.planning.gate_power import describe_condition, describe_gate_power  # imports scipy

    forecast = Forecast(plan, layout)
    verdicts, estimates = forecast.verdicts, forecast.estimates
    hits = sum(verdict == "HIT" for verdict, _ in verdicts.values())
    lines = [
        f"{hits} of {len(plan.steps)} steps are cached",
        *describe_learning_rates(plan),
        *describe_costs(plan, estimates),
        *describe_gate_power(plan, layout),
    ]
    lines += describe_promotion(plan)
    caption = "\n".join([*lines, *describe_excess(plan, estimates)])
    table = Table(title=f"Plan of {plan.recipe}", caption=caption, title_justify="left", caption_justify="left")
    for column in ("step", "kind", "", "why", "reads", "cores", "time"):
        table.add_column(column, overflow="fold")
    for step in plan.steps:
        verdict, why = verdicts[step.name]
        mark = Text(verdict, style="green" if verdict == "HIT" else "yellow")
        why = "; ".join(filter(None, (why.removeprefix("made by "), describe_condition(step, plan))))
        cells = (Text(step.name), step.kind, mark, Text(why), Text(step.reads))
        table.add_row(*cells, f"{step.resources.all_cpus:g}", _format_time(estimates[step.name]))
    return table


def describe_learning_rates(plan: Plan) -> list[str]:
    """Return one line with the learning rate of every step that trains; none if no step does."""
    rates = {step.name: step.settings["learning_rate"] for step in plan.steps if "learning_rate" in step.settings}
    return [f"learning rates: {', '.join(f'{name} {rate:g}' for name, rate in rates.items())}"] if rates else []


def _format_time(estimate: Estimate) -> str:
    if estimate.cost is None:
        return "unknown"
    took = format_duration(estimate.cost.seconds)
    return f"saves {took}" if estimate.is_hit else f"about {took} ({estimate.certainty})"


def describe_promotion(plan: Plan) -> list[str]:
    """Return one line that says what becomes champion and when; none without `promote`."""
    promotion = plan.promotion
    if promotion is None:
        return []
    model, gate = promotion.models[-1], promotion.gates[-1]
    return [f"{model} becomes mlflow:{promotion.name}@champion when every gate of {gate} passes"]


@dataclass(frozen=True)
class StepExplanation:
    """Why a step would run, or which run made its artifact; every difference from when it last ran."""

    step: str
    verdict: str
    """HIT or MISS."""
    why: str
    key: str
    differences: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.step}: {self.verdict}, {self.why} (key {self.key[:16]})"
        return "\n".join([head, *(f"  {line}" for line in self.differences)])


def explain_step(plan: Plan, name: str, layout: Layout) -> StepExplanation:
    """Return all differences of a step from when it last ran. Raise PlanError if there is no such step."""
    names = [step.name for step in plan.steps]
    if name not in names:
        raise PlanError(f"no step `{name}` in {plan.recipe}; {suggest(name, names, 'steps')}")
    step = plan.step(name)
    verdict, why = explain_plan(plan, layout)[name]
    before = find_latest(layout, plan.recipe, [name]).get(name) if verdict == "MISS" else None
    differences = list_differences(before.identity, step.identity, FactsCache(layout)) if before else ()
    return StepExplanation(name, verdict, why, step.key, tuple(differences))
