"""A budget is foreseen from what ran before, holds while a run goes on, and is accounted for afterwards."""

import json
import re
from dataclasses import asdict

import psutil
import pytest

from flows.execution.ledger import Consumption, Ledger, change_budget, describe_spending
from flows.planning.estimate import describe_costs, describe_excess, estimate_steps, format_cost, list_exceeded_limits
from flows.planning.explain import explain_plan
from flows.planning.recipe_plan import plan_recipe
from flows.runs.costs import make_cost_record
from flows.runs.launch import run_plan
from flows.steps.in_process import InProcess, RunningStep
from lineage.artifacts.store import Store
from lineage.layout import Layout
from lineage.reports.formatting import format_duration
from lineage.reports.spending import Cost, Spending, compare_with_estimate, read_spending, sum_costs
from schemas.budget import Budget, Prices
from schemas.errors import PlanError, RecipeError
from tests.waiting import wait_for

LAB = '''
import time

from tasks.context import Context


def work(context: Context, *, tokens: int = 0, parts: int = 1, size: int = 1, wait: bool = False) -> dict[str, int]:
    """Spend tokens part by part, going on where the last try was; `wait` for ever after the first part."""
    file = context.checkpoints / "done.txt"
    begun = int(file.read_text()) if file.is_file() else 0
    for at in range(begun, parts):
        context.spend(tokens)
        file.write_text(str(at + 1))
        context.progress(at + 1, parts)
        while wait and begun == 0:
            time.sleep(0.01)
    (context.output("result") / "n.txt").write_text("1" * size)
    return {"began": begun}
'''
RECIPE = """
name: counted
budget: BUDGET
stages:
  first: {kind: python, function: {use: "budget_lab:work", tokens: 40}}
  long:
    kind: python
    function: {use: "budget_lab:work", tokens: 100, parts: 3, wait: true}
    inputs: {x: first}
    retries: 2
  last: {kind: python, function: "budget_lab:work", inputs: {x: long}}
  beside: {kind: python, function: {use: "budget_lab:work", tokens: 5}, inputs: {x: first}, resources: {num_cpus: 2}}
"""


class Lab:
    """A folder of a user with a recipe."""

    def __init__(self, folder):
        self.folder, self.layout = folder, Layout(folder)
        (folder / "budget_lab.py").write_text(LAB)

    def plan(self, budget="{}", **options):
        (self.folder / "counted.yaml").write_text(RECIPE.replace("BUDGET", budget))
        return plan_recipe(self.folder / "counted.yaml", self.layout, **options)

    def run(self, plan, run=None):
        return run_plan(plan, self.layout, executor="inprocess", prefect=False, run=run)

    def found(self, plan):
        return estimate_steps(plan, self.layout, explain_plan(plan, self.layout))


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def states(outcome):
    return {name: state.state for name, state in outcome.states.items()}


@pytest.mark.timeout(300)
def test_a_run_stops_at_its_budget_and_continues_with_a_larger_one(lab):
    alone = ["stages.beside.inputs={x: long}"]  # nothing else spends tokens while `long` runs
    outcome = lab.run(lab.plan("{tokens: 120}", overrides=alone))
    assert outcome.exit_code == 1
    assert states(outcome)["first"] == "done"
    assert states(outcome)["long"] == "failed"
    assert states(outcome)["last"] == "blocked"
    assert outcome.states["long"].reason.startswith("the run's budget is spent: 140 tokens, the limit is 120")
    events = [json.loads(line) for line in (lab.layout.run(outcome.run) / "events.jsonl").read_text().splitlines()]
    assert not [e for e in events if e["type"] == "retry"]  # a budget is no failure to try again
    spent = read_spending(lab.layout, outcome.run).spent
    assert (spent["first"].tokens, spent["long"].tokens) == (40, 100)
    again = lab.run(lab.plan("{tokens: 120}", overrides=alone), run=outcome.run)  # what was spent stays spent
    assert again.exit_code == 1
    assert again.states["long"].reason.startswith("the run's budget is spent")
    assert read_spending(lab.layout, outcome.run).spent["long"].tokens == 100
    resumed = lab.run(change_budget(lab.plan("{tokens: 120}", overrides=alone), ["tokens=1000"]), run=outcome.run)
    assert resumed.exit_code == 0
    assert resumed.states["first"].state == "cached"
    assert resumed.states["long"].manifest.metrics == {"began": 1}  # from its checkpoint
    assert resumed.states["long"].manifest.tokens == 200
    noted = read_spending(lab.layout, outcome.run)
    assert sum_costs(noted.spent.values()).tokens == 40 + 300 + 5
    assert noted.spent["beside"].core_seconds == pytest.approx(2 * noted.spent["beside"].seconds)


def test_a_step_that_ends_while_it_is_being_stopped_is_done_and_its_tokens_count(lab, monkeypatch):
    ended = []

    class SeenLate(RunningStep):
        def wait(self, seconds):
            ended.append(super().wait(60))
            return False

        def kill(self):
            assert ended == [True]

    monkeypatch.setattr(InProcess, "submit", lambda self, spec: SeenLate(spec))
    monkeypatch.setattr(Ledger, "find_stop_reason", lambda self: "the run's budget is spent" if ended else "")
    outcome = lab.run(lab.plan(to=["first"]))
    assert states(outcome)["first"] == "done"
    assert read_spending(lab.layout, outcome.run).spent["first"].tokens == 40


def test_a_budget_that_warns_stops_nothing(lab):
    plan = lab.plan("{tokens: 10, on_exceed: warn}", to=["first", "beside"])
    outcome = lab.run(plan)
    assert outcome.exit_code == 0
    (spent, passed) = describe_spending(plan, lab.layout, outcome.run)
    assert "45 tokens" in spent
    assert passed == "the run exceeded its budget: 45 tokens, the limit is 10"


def test_the_estimate_at_the_end_stands_beside_what_the_same_steps_spent(lab):
    lab.run(lab.plan(to=["first", "beside"]))
    plan = lab.plan(overrides=["stages.beside.seed=6", "stages.last.inputs={x: beside}"], to=["beside", "last"])
    outcome = lab.run(plan)
    estimated = next(m for m in Store(lab.layout).manifests() if m.step == "beside" and m.run != outcome.run)
    spent = read_spending(lab.layout, outcome.run).spent
    assert set(spent) == {"beside", "last"}
    (line,) = describe_spending(plan, lab.layout, outcome.run)
    total = format_cost(sum_costs(spent.values()), Prices())
    then = format_cost(Cost(estimated.seconds, 2 * estimated.seconds, 0.0, 5), Prices())
    assert line == (
        f"spent: {total}; estimated: {then} for steps that spent {format_cost(spent['beside'], Prices())}; "
        "not estimated: last"
    )
    record = make_cost_record(outcome.run, lab.layout)
    assert record["estimate"]["not_estimated"] == ["last"]
    assert record["estimate"]["spent"] == asdict(spent["beside"])
    assert record["estimate"]["estimated"]["core_seconds"] == 2 * estimated.seconds


def test_an_estimate_of_every_step_is_compared_with_the_whole(lab):
    lab.run(lab.plan(to=["first"]))
    plan = lab.plan(overrides=["stages.first.seed=6"], to=["first"])
    (line,) = describe_spending(plan, lab.layout, lab.run(plan).run)
    assert re.fullmatch(r"spent: \S+ core-seconds, 40 tokens; estimated: \S+ core-seconds, 40 tokens", line)


def test_steps_that_never_began_are_in_neither_sum():
    spending = Spending({"a": Cost(1.0), "b": Cost(50.0), "c": None}, {"a": Cost(2.0), "c": Cost(7.0)})
    assert compare_with_estimate(spending) == (Cost(1.0), Cost(2.0), ["c"])
    assert compare_with_estimate(Spending({"a": None}, {"a": Cost(2.0)})) is None


def test_unknown_costs_are_marked_and_earlier_runs_give_estimates(lab):
    before = lab.found(lab.plan())
    assert {name: estimate.cost for name, estimate in before.items()} == dict.fromkeys(before)
    assert list(describe_costs(lab.plan(), before)) == ["estimated cost: unknown, no comparable steps ran before"]
    lab.run(lab.plan(to=["first", "beside"]))
    plan = lab.plan(overrides=["stages.beside.seed=6"], to=["beside"])
    costs = lab.found(plan)
    made = {m.step: m for m in Store(lab.layout).manifests()}
    assert costs["first"].is_hit
    assert costs["first"].cost == Cost(made["first"].seconds, made["first"].seconds, 0.0, 40)
    assert costs["beside"].cost == Cost(made["beside"].seconds, 2 * made["beside"].seconds, 0.0, 5)
    assert costs["beside"].basis == f"run {made['beside'].run}, 1 comparable run"
    cost, saved = describe_costs(plan, costs)
    assert cost.startswith("estimated cost: ")
    assert "5 tokens" in cost
    assert "40 tokens" in saved
    assert "money" not in cost + saved  # no prices, no money


def test_other_work_gives_no_estimate_and_is_named(lab):
    lab.run(lab.plan(to=["first"]))
    plan = lab.plan(overrides=["stages.first.function.parts=400"], to=["first"])
    costs = lab.found(plan)
    assert costs["first"].cost is None
    assert list(describe_costs(plan, costs)) == [
        "estimated cost: unknown, no comparable steps ran before",
        "no estimate for first: earlier ones differ in function.parts: 1 → 400",
    ]


def test_an_estimate_is_the_median_of_comparable_runs_and_says_how_many(lab):
    for seed in (1, 2, 3):
        lab.run(lab.plan(overrides=[f"stages.first.seed={seed}"], to=["first"]))
    lab.run(lab.plan(overrides=["stages.first.function.tokens=1000"], to=["first"]))  # other work
    seconds = sorted(m.seconds for m in Store(lab.layout).manifests() if m.tokens == 40)
    found = lab.found(lab.plan(overrides=["stages.first.seed=4"], to=["first"]))["first"]
    assert found.cost.seconds == seconds[1]
    span = f"{format_duration(seconds[0])} to {format_duration(seconds[2])}"
    assert found.certainty == f"3 comparable runs: {span}"


def test_inputs_are_compared_by_size(lab):
    lab.run(lab.plan(to=["first", "beside"]))
    larger = ["stages.first.function.size=99", "stages.beside.seed=4"]
    plan = lab.plan(overrides=larger, to=["beside"])
    assert lab.found(plan)["beside"].certainty == "1 comparable run; if inputs.x is as large as then"
    lab.run(lab.plan(overrides=larger, to=["first"]))
    assert lab.found(plan)["beside"].basis == "earlier ones differ in inputs.x: 99 times as large"


def test_a_plan_above_its_budget_says_so(lab):
    lab.run(lab.plan(to=["first"]))
    plan = lab.plan("{tokens: 30, money: 0.0001, prices: {million_tokens: 10}}", to=["first"], fresh=True)
    costs = lab.found(plan)
    assert list(describe_excess(plan, costs)) == [
        "the plan is predicted to exceed its budget: 40 tokens, the limit is 30",
        "the plan is predicted to exceed its budget: 0.0004 of money, the limit is 0.0001",
    ]
    assert "0.0004 of money" in next(describe_costs(plan, costs))


def test_limits_and_prices_by_hand():
    budget = Budget(core_seconds=100, gpu_seconds=50, money=1.0, prices=Prices(core_hour=0.36, gpu_hour=36))
    assert list_exceeded_limits(budget, Cost(core_seconds=100, gpu_seconds=50)) == ["0.51 of money, the limit is 1"][:0]
    assert list_exceeded_limits(budget, Cost(core_seconds=150, gpu_seconds=99)) == [
        "150 core-seconds, the limit is 100",
        "99 GPU-seconds, the limit is 50",
        "1 of money, the limit is 1",
    ]
    assert Prices(core_hour=0.36, gpu_hour=36).money(100, 50, 10**9) == pytest.approx(0.01 + 0.5)
    assert Prices().money(100, 50, 10**9) is None


def test_core_seconds_are_counted_while_steps_run(lab):
    now = [0.0]
    plan = lab.plan("{core_seconds: 10}")
    ledger = Ledger(plan, lab.layout, "r", {}, clock=lambda: now[0])
    ledger.begin(plan.step("beside"))
    now[0] = 5.0
    assert ledger.find_stop_reason() == ""
    now[0] = 5.5
    assert ledger.find_stop_reason() == "the run's budget is spent: 11 core-seconds, the limit is 10"
    assert read_spending(lab.layout, "r").spent["beside"] == Cost(5.5, 11.0, 0.0, 0)  # a killed run has noted it
    ledger.end(plan.step("beside"), Consumption(6.0, 7))
    assert read_spending(lab.layout, "r").spent["beside"] == Cost(6.0, 12.0, 0.0, 7)
    later = Ledger(plan, lab.layout, "r", {"beside": None}, clock=lambda: now[0])
    assert later.find_stop_reason() == "the run's budget is spent: 12 core-seconds, the limit is 10"


def test_the_budget_enters_no_key(lab):
    keys = [[step.key for step in lab.plan(budget).steps] for budget in ("{}", "{tokens: 1}")]
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("{money: 3}", "`money` needs `prices`"),
        ("{core_second: 3}", "did you mean `core_seconds`"),
        ("{tokens: 0}", "greater than 0"),
        ("{on_exceed: never}", "words: stop, warn"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(lab, budget, message):
    with pytest.raises(RecipeError) as refused:
        lab.plan(budget)
    assert message in str(refused.value)
    assert "counted.yaml:3:" in str(refused.value)


@pytest.mark.parametrize(
    "change", ["tokens", "tokens=many", "token=3", "tokens.x=3", "money=1", "tokens=[", "prices=1"]
)
def test_another_budget_that_means_nothing_is_refused(lab, change):
    with pytest.raises(PlanError, match="--budget"):
        change_budget(lab.plan("{tokens: 3}"), [change])


def test_another_budget_keeps_the_rest(lab):
    budget = change_budget(lab.plan("{tokens: 3, on_exceed: warn}"), ["core_seconds=5", "prices.core_hour=2"]).budget
    assert (budget.tokens, budget.core_seconds, budget.prices.core_hour, budget.on_exceed) == (3, 5.0, 2.0, "warn")


HANGS = """
import os
import subprocess
import time
from pathlib import Path


def hang(context, *, told: str):
    if (context.checkpoints / "tried.txt").is_file():
        (context.output("result") / "n.txt").write_text("1")
        return
    (context.checkpoints / "tried.txt").write_text("1")
    child = subprocess.Popen(["sleep", "600"])
    Path(told).write_text(f"{os.getpid()} {child.pid}")
    context.spend(100)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_step_on_ray_is_ended_with_all_that_it_started(tmp_path):
    (tmp_path / "hang_lab.py").write_text(HANGS)
    pid_file = tmp_path / "told.txt"
    (tmp_path / "hang.yaml").write_text(
        f"name: hang\nbudget: {{tokens: 50}}\nstages:\n"
        f'  long: {{kind: python, function: {{use: "hang_lab:hang", told: "{pid_file}"}}}}\n'
    )
    layout = Layout(tmp_path / "root")
    layout.root.mkdir()
    plan = plan_recipe(tmp_path / "hang.yaml", layout)
    outcome = run_plan(plan, layout, prefect=False)
    assert outcome.exit_code == 1
    assert outcome.states["long"].reason.startswith("the run's budget is spent: 100 tokens")
    for pid in map(int, pid_file.read_text().split()):
        wait_for(
            lambda pid=pid: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE,
            said=lambda pid=pid: pid,
        )
    resumed = run_plan(change_budget(plan, ["tokens=10000"]), layout, prefect=False, run=outcome.run)
    assert (resumed.exit_code, resumed.states["long"].state) == (0, "done")
