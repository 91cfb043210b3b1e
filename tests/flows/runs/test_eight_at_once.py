"""Eight runs of overlapping recipes at the same time: each step is done once, and all end as if they were alone."""

from collections import Counter

import pytest

from flows.execution.run_log import list_runs, read_events
from lineage.artifacts.store import Store
from lineage.audit.log import read_entries
from lineage.verification.audit_check import check_audit

RUNS = 8
WORK = '''
def once(context, *, file: str, name: str):
    """Tells that it was done, and writes its name after those of what it reads."""
    with open(file, "a") as stream:
        stream.write(name + "\\n")
    before = [(folder / "n.txt").read_text() for port, folder in sorted(context.inputs.items()) if "inputs." in port]
    (context.output("result") / "n.txt").write_text(name + "".join(before))
'''
STAGE = '  {name}: {{kind: python, function: {{use: "shared_work:once", file: "DONE", name: {name}}}{inputs}}}\n'
LAUNCH = """
import sys
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.layout import Layout
layout = Layout.find()
sys.exit(run_plan(plan_recipe(sys.argv[1], layout), layout, executor="inprocess", prefect=False).exit_code)
"""
"""A run without what follows it on the command line: MLflow alone takes eight processes half a minute to import."""
EXPECTED = {"a", "b", *(f"pair{n}" for n in range(RUNS // 2)), *(f"own{n}" for n in range(RUNS))}


def recipe(number):
    """Two stages that all share, one that two share, one of its own."""
    pair = f"pair{number // 2}"
    inputs = {
        "a": "",
        "b": ", inputs: {x: a}",
        pair: ", inputs: {x: a, y: b}",
        f"own{number}": f", inputs: {{x: {pair}}}",
    }
    stages = "".join(STAGE.format(name=name, inputs=given) for name, given in inputs.items())
    return f"name: shared{number}\nseed: 5\nstages:\n{stages}"


def write_recipes(made, done):
    paths = [made.layout.root / f"shared{n}.yaml" for n in range(RUNS)]
    for number, path in enumerate(paths):
        path.write_text(recipe(number).replace("DONE", str(done)))
    return paths


@pytest.fixture
def alone(checkout, tmp_path):
    """Digests of the same recipes, one run after the other."""
    from flows.planning.recipe_plan import plan_recipe
    from flows.runs.launch import run_plan

    made = checkout("alone", "", {"shared_work": WORK})
    for path in write_recipes(made, tmp_path / "alone.txt"):
        outcome = run_plan(plan_recipe(path, made.layout), made.layout, executor="inprocess", prefect=False)
        assert outcome.exit_code == 0, [(s.step, s.state, s.reason) for s in outcome.states.values()]
    return made.digests()


SLOW = [pytest.param(executor, marks=pytest.mark.slow) for executor in ("inprocess", "ray")]


@pytest.mark.parametrize("executor", [None, *SLOW])
def test_each_step_is_done_once_and_right(checkout, alone, tmp_path, executor):
    done = tmp_path / "done.txt"
    made = checkout("together", "", {"shared_work": WORK})
    started = []
    for path in write_recipes(made, done):
        words = ("run", path, "--executor", executor) if executor else (path,)
        process = made.start(*words, program=("-m", "flows.cli") if executor else ("-c", LAUNCH))
        started.append((process, made.output))
    codes = [process.wait(500) for process, _ in started]
    outputs = [output.read_text() for _, output in started]
    assert codes == [0] * RUNS, outputs
    assert not [text for text in outputs if "was not updated" in text or "Traceback" in text], outputs
    assert sorted(done.read_text().split()) == sorted(EXPECTED)
    assert made.digests() == alone
    ends_are_right(made.layout)
    log_is_right(made.layout)
    if executor:
        recorded = {(layout_run / "mlflow.txt").is_file() for layout_run in (made.layout.state / "runs").iterdir()}
        assert recorded == {True}
    assert made.leftovers() == []
    made.is_quiet()


def ends_are_right(layout):
    """Of the runs that needed a step one did it, and the others found it."""
    names = list_runs(layout)
    assert len(names) == RUNS
    ends = [
        e
        for name in names
        for e in read_events(layout, name)
        if e["type"] == "step" and e["state"] in ("done", "cached")
    ]
    count = Counter((e["step"], e["state"]) for e in ends)
    assert {step for step, state in count if state == "done"} == EXPECTED
    assert all(number == 1 for (_, state), number in count.items() if state == "done")
    assert count["a", "cached"] == count["b", "cached"] == RUNS - 1
    assert [count[f"pair{n}", "cached"] for n in range(RUNS // 2)] == [1] * (RUNS // 2)


def log_is_right(layout):
    """The chain is unbroken and tells of every run and artifact once."""
    check = check_audit(layout)
    assert (check.problems, check.notes) == ([], [])
    actions = Counter(e["action"] for e in read_entries(layout))
    assert (actions["run started"], actions["run ended"], actions["artifact published"]) == (RUNS, RUNS, len(EXPECTED))
    published = [e["facts"]["key"] for e in read_entries(layout) if e["action"] == "artifact published"]
    assert sorted(published) == sorted(m.key for m in Store(layout).manifests())
