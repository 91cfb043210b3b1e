"""A real run with a remote teacher and judge, killed with -9 in the middle: every answer is paid for once."""

import json
import sqlite3

import pytest

from flows.execution.states import StepState
from flows.prefect_runs.run_page import make_yield_tables
from flows.runs.lookup import rebuild_report
from learning.data.rows import read_rows
from lineage.artifacts.store import Store
from lineage.reports.spending import read_spending
from tests.teacher_server import Teacher, digest, serving

KEY = "planted-key-of-the-teacher-51f0"
RECIPE = """
name: taught
endpoints:
  teacher:
    base_url: "${env:TEACHER_URL}"
    api_key: "${env:TEACHER_KEY}"
    model: big
    max_concurrency: CONCURRENCY
    max_retries: 6
    backoff: 0.001
    max_backoff: 0.01
    timeout: 60
    price: {input_per_million: 2.0, output_per_million: 10.0}
budget: {money: 1.0}
stages:
  lessons:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 20, style: short}]
    teacher: {use: endpoint, endpoint: teacher}
    num_generations: 3
    rewards: [{use: judges.endpoint, endpoint: teacher, template: "Judge {completion}"}]
    min_reward: 0.5
    max_cost: 0.5
"""
PRICES = 2e-6, 1e-5
PROGRAM = """
import sys
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.layout import Layout
layout = Layout.find()
plan = plan_recipe(sys.argv[1], layout, overrides=sys.argv[2:])
outcome = run_plan(plan, layout, executor="inprocess", prefect=False)
print([(state.state, state.reason) for state in outcome.states.values()])
sys.exit(outcome.exit_code)
"""


def answer(body):
    question = body["messages"][-1]["content"]
    if question.startswith("Judge "):
        return str(digest(question) % 11), "stop"
    return f"answer {digest(question + str(body['seed'])) % 1000}", "stop"


class Paused(Teacher):
    """Holds every request back once so many answers were paid for, until the gate is opened again."""

    def __init__(self, pause_after, **more):
        super().__init__(answer, **more)
        self.pause_after = pause_after

    def answered(self, body, key):
        made = super().answered(body, key)
        if len(self.paid) >= self.pause_after:
            self.gate.clear()
            self.pause_after = float("inf")
        return made


def run(made, processes, address, teacher, *, kill=False, words=None):
    """A run to its end; with `kill`, one that is killed while a request is held back, and then another."""
    start = words or [made.recipe]
    how = {"TEACHER_URL": address, "TEACHER_KEY": KEY} | ({} if words else {"program": ("-c", PROGRAM)})
    process = made.start(*start, **how)
    if kill:
        processes.wait_for(lambda: teacher.held or process.poll() is not None, 200)
        assert process.poll() is None, made.output.read_text()
        processes.kill(process)
        teacher.gate.set()
        process = made.start(*start, **how)
    made.finish(process)


def result(made):
    (manifest,) = Store(made.layout).manifests()
    return manifest, read_rows(Store(made.layout).folder(manifest) / "outputs/chat", "chat")


def leaks(root):
    """Files that hold the key, also in cells of SQLite."""
    leaked = [str(p) for p in root.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]
    for path in root.rglob("*.sqlite"):
        with sqlite3.connect(path) as base:
            leaked += [str(row) for row in base.execute("SELECT * FROM answers") if KEY in str(row)]
        base.close()
    return leaked


@pytest.mark.timeout(580)
def test_a_killed_run_resumes_and_no_answer_is_paid_twice(checkout, processes):
    """One request at a time: when one is held back, the answer before it was kept, and the next was not made.

    So nothing is lost even with a server that does not know idempotency keys.
    """
    made, whole = (
        checkout("killed", RECIPE.replace("CONCURRENCY", "1")),
        checkout("whole", RECIPE.replace("CONCURRENCY", "8")),
    )
    teacher, healthy = Paused(33, knows_keys=False, drops_held=True), Teacher(answer)
    with serving(teacher) as address:
        run(made, processes, address, teacher, kill=True)
    with serving(healthy) as address:
        run(whole, processes, address, healthy)
    assert set(teacher.paid_questions.values()) == {1}
    assert teacher.paid_questions.keys() == healthy.paid_questions.keys()
    (manifest, rows), (other, expected) = result(made), result(whole)
    assert rows == expected
    assert [output.digest for output in manifest.outputs.values()] == [o.digest for o in other.outputs.values()]
    assert 32 <= manifest.metrics["cached"] <= 33
    assert other.metrics["cached"] == 0
    assert manifest.metrics["accepted"] == other.metrics["accepted"] == len(rows) > 0
    # Of 60 replies; the judge is asked about each text once.
    assert manifest.metrics["answered"] == 60
    asked, report = healthy.paid_tokens
    assert other.metrics["paid"] == 60
    assert other.paid_tokens == other.tokens == asked + report
    assert other.paid == pytest.approx(asked * PRICES[0] + report * PRICES[1])
    (run_name,) = [p.name for p in (whole.layout.state / "runs").iterdir()]
    spent = read_spending(whole.layout, run_name).spent["lessons"]
    assert spent.paid == pytest.approx(other.paid)
    assert leaks(made.layout.root) == leaks(whole.layout.root) == []
    page = rebuild_report(run_name, whole.layout).read_text()
    assert "<h2>Yield</h2>" in page
    assert '<th class="n">rejected: reward' in page
    states = {"lessons": StepState("lessons", "done", manifest=other)}
    (table,) = make_yield_tables(states)
    assert table.splitlines()[2].startswith("| family | problems | wanted | missing | asked | answered | cached |")
    assert table.splitlines()[4].startswith("| chain_sum | 20 | 60 | 0 | 60 | 60 | 0 |")
    assert (
        json.loads(whole.layout.run(run_name).joinpath("plan.json").read_text())["steps"][0]["settings"]["teacher"][
            "endpoint"
        ]["api_key"]
        == "${env:TEACHER_KEY}"
    )


@pytest.mark.slow
@pytest.mark.timeout(580)
def test_killed_on_ray_with_many_under_way(checkout, processes):
    """A server that knows idempotency keys gives again what was on its way when the run was killed, unpaid."""
    made = checkout("killed", RECIPE.replace("CONCURRENCY", "8"))
    teacher = Paused(33)
    with serving(teacher) as address:
        run(made, processes, address, teacher, kill=True, words=["run", made.recipe, "--executor", "ray"])
    assert "of money" in made.output.read_text()
    assert set(teacher.paid_questions.values()) == {1}
    manifest, rows = result(made)
    assert manifest.metrics["answered"] == 60
    assert manifest.metrics["accepted"] == len(rows)
    assert leaks(made.layout.root) == []


@pytest.mark.slow
@pytest.mark.timeout(580)
def test_a_run_stops_at_its_budget_of_money_and_keeps_what_it_paid_for(checkout, processes):
    """The budget is looked at while the step goes on; what it paid for is there for the next run."""
    made = checkout("poor", RECIPE.replace("CONCURRENCY", "1").replace("money: 1.0", "money: 0.0002"))
    teacher = Paused(25)
    with serving(teacher) as address:
        how = {"TEACHER_URL": address, "TEACHER_KEY": KEY, "program": ("-c", PROGRAM)}
        process = made.start(made.recipe, **how)
        assert process.wait(200) == 1, made.output.read_text()
        assert "of money, the limit is 0.0002" in made.output.read_text()
        before = len(teacher.paid)
        teacher.pause_after = float("inf")
        teacher.gate.set()
        made.finish(made.start(made.recipe, "budget.money=1", **how))
    assert 20 <= before <= 25
    assert set(teacher.paid_questions.values()) == {1}
    assert result(made)[0].metrics["cached"] >= before - 1
