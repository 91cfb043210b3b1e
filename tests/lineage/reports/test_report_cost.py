"""What the report says of cost: estimated, spent in all tries, saved; money only where there are prices."""

import pytest

from lineage.reports.cost import compute_costs
from lineage.reports.report import write_report
from lineage.reports.spending import Cost, Spending, read_spending, write_spending
from schemas.budget import Budget, Prices


def read_records(small_run, run="run-2", budget=None):
    """A run that found `base` and made the others, with one try of `tuned` that was stopped before."""
    plan = small_run.plan().model_copy(update={"budget": budget})
    noted = {"tuned": Cost(4.0, 8.0, 4.0, 300), "raw": Cost(1.0, 1.0)}
    write_spending(small_run.layout, run, Spending({"tuned": Cost(3.0, 3.0, 3.0, 200), "raw": None}, noted))
    made = {n: m.model_copy(update={"run": "run-1" if n == "base" else run}) for n, m in small_run.made.items()}
    state = {name: "cached" if name in ("base", "lessons") else "done" for name in made}
    return plan, made, state, small_run.layout, run


def test_estimated_spent_and_saved(small_run):
    costs = compute_costs(*read_records(small_run))
    lines = {line.step: line for line in costs.lines}
    assert (lines["tuned"].estimated, lines["tuned"].spent) == (Cost(3.0, 3.0, 3.0, 200), Cost(4.0, 8.0, 4.0, 300))
    assert (lines["raw"].estimated, lines["raw"].spent) == (None, Cost(1.0, 1.0))
    assert (lines["base"].spent, lines["base"].saved) == (None, Cost(1.5, 1.5))
    assert (lines["lessons"].spent, lines["lessons"].saved) == (Cost(1.5, 1.5), None)  # made before it was resumed
    assert costs.total.spent == Cost(4.0 + 1.0 + 2 * 1.5, 8.0 + 1.0 + 2 * 1.5, 4.0, 300)
    assert (costs.unknown, costs.money) == (["raw"], {})
    assert costs.compared == (Cost(3.0, 3.0, 3.0, 200), Cost(4.0, 8.0, 4.0, 300), ["lessons", "lessons_clean", "raw"])


def test_money_by_prices(small_run):
    prices = Prices(core_hour=3600, gpu_hour=36000)
    costs = compute_costs(*read_records(small_run, budget=Budget(prices=prices)))
    assert costs.money == pytest.approx(
        {"estimated": 3.0 + 30.0, "spent": 12.0 + 40.0, "saved": 1.5, "compared": 8.0 + 40.0}
    )


def test_the_page_shows_it(small_run):
    plan, made, state, layout, run = read_records(small_run, budget=Budget(tokens=500, prices=Prices(core_hour=3600)))
    del made["lessons_clean"]  # the fixture's has no report to show
    page = write_report(plan, {n: {"state": s} for n, s in state.items()}, made, layout, run).read_text()
    for text in (
        "<b>10.5</b> core-seconds",
        "<b>300</b> tokens",
        "Estimated before it began: <b>3.0 s</b>, <b>3</b> of money, for steps that spent <b>4.0 s</b>",
        ", <b>8</b> of money; not estimated",
        "; not estimated: lessons, raw.",
        "Budget: 500 tokens",
        "<b>10.5</b> of money",
    ):
        assert text in page, text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"predicted": {}, "spent": {"a": {"hours": 1}}}'])
def test_a_damaged_note_counts_as_none(small_run, text):
    assert read_spending(small_run.layout, "run-9") is None
    small_run.layout.run("run-9").mkdir(parents=True)
    (small_run.layout.run("run-9") / "cost.json").write_text(text)
    assert read_spending(small_run.layout, "run-9") is None
