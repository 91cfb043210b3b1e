import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from flows.execution.run_log import read_events
from flows.planning.explain import explain_plan
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from flows.steps.in_process import InProcess, RunningStep
from flows.steps.step import run_step
from flows.steps.step_spec import StepSpec
from lineage.artifacts.store import Store
from lineage.layout import Layout
from schemas.atomic_write import atomic_file
from schemas.errors import StepError
from tests.waiting import wait_for

LAB = '''
import os, time
from pathlib import Path

def number(context, *, value: int = 1):
    """Write a number."""
    print("writing", value)
    (context.output("result") / "n.txt").write_text(str(value))
    return {"value": value}

def add(context, *, extra: int = 0):
    total = extra + sum(int((p / "n.txt").read_text()) for n, p in context.inputs.items() if n.startswith("inputs."))
    (context.output("result") / "n.txt").write_text(str(total))
    return {"total": total}

def count_calls(context, *, file: str, seconds: float = 0.5):
    with open(file, "a") as f:
        f.write("x")
    time.sleep(seconds)
    (context.output("result") / "n.txt").write_text("7")

def flaky(context, *, file: str, failures: int = 1):
    with open(file, "a") as f:
        f.write("x")
    if len(Path(file).read_text()) <= failures:
        raise RuntimeError("not yet")
    (context.output("result") / "n.txt").write_text("1")

def slow_sum(context, *, rounds: int, file: str):
    state = context.checkpoints / "state.txt"
    i, total = map(int, state.read_text().split()) if state.exists() else (0, 0)
    for i in range(i, rounds):
        total = total * 31 % 1000003 + i
        new = context.checkpoints / "state.tmp"
        new.write_text(f"{i + 1} {total}")
        new.replace(state)
        with open(file, "a") as f:
            f.write(f"{i}\\n")
        time.sleep(0.02)
    (context.output("result") / "n.txt").write_text(str(total))

def gated(context):
    from tasks.context import Result
    (context.output("result") / "n.txt").write_text("1")
    return Result({"accuracy": 0.1}, {"gates": [{"metric": "accuracy", "passed": False, "on_fail": "stop"}]})
'''
TWO = """
name: two
stages:
  a: {kind: python, function: {use: "lab:number", value: 3}}
  b: {kind: python, function: {use: "lab:add", extra: 4}, inputs: {x: a}}
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    name = f"lab_{os.getpid()}_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(LAB)
    monkeypatch.syspath_prepend(str(tmp_path))
    layout = Layout(tmp_path / "root")
    layout.root.mkdir()

    def plan(text, **kwargs):
        (tmp_path / "recipe.yaml").write_text(text.replace("lab:", f"{name}:"))
        return plan_recipe(tmp_path / "recipe.yaml", layout, **kwargs)

    plan.layout, plan.file, plan.root = layout, tmp_path / f"{name}.py", tmp_path
    return plan


def go(plan, layout):
    return run_plan(plan, layout, executor="inprocess", prefect=False)


def states(outcome):
    return {name: s.state for name, s in outcome.states.items()}


def read(layout, state):
    return (layout.artifact(state.manifest.kind, state.manifest.key) / "outputs/result/n.txt").read_text()


def test_runs_then_hits_then_runs_only_what_a_value_asks_for(lab):
    outcome = go(lab(TWO), lab.layout)
    assert states(outcome) == {"a": "done", "b": "done"}
    assert outcome.exit_code == 0
    assert read(lab.layout, outcome.states["b"]) == "7"
    assert states(go(lab(TWO), lab.layout)) == {"a": "cached", "b": "cached"}
    above = lab(TWO, overrides=["stages.a.function.value=1"])
    verdicts = explain_plan(above, lab.layout)
    assert verdicts["a"] == ("MISS", "function.value: 3 → 1")
    assert verdicts["b"] == ("MISS", "input inputs.x: a runs again")
    changed = lab(TWO, overrides=["stages.b.function.extra=5"])
    assert explain_plan(changed, lab.layout)["b"] == ("MISS", "function.extra: 4 → 5")
    assert states(go(changed, lab.layout)) == {"a": "cached", "b": "done"}


def test_names_comments_and_docstrings_are_not_in_the_key_but_code_is(lab):
    keys = [s.key for s in lab(TWO).steps]
    renamed = TWO.replace("  a:", "  first:").replace("x: a", "x: first")
    assert [s.key for s in lab(renamed).steps] == keys
    lab.file.write_text("# a comment\n" + LAB.replace("Write a number.", "Write one number."))
    assert [s.key for s in lab(TWO).steps] == keys
    lab.file.write_text(LAB.replace('print("writing", value)', 'print("wrote", value)'))
    assert all(s.key != k for s, k in zip(lab(TWO).steps, keys, strict=True))


def test_code_is_named_when_it_changed(lab):
    go(lab(TWO), lab.layout)
    lab.file.write_text(LAB.replace('print("writing", value)', 'print("wrote", value)'))
    verdict, why = explain_plan(lab(TWO), lab.layout)["a"]
    assert (verdict, why) == ("MISS", f"code: {lab.file.name} changed")


def test_failure_blocks_what_depends_on_it_and_nothing_else(lab):
    text = TWO + '  c: {kind: python, function: {use: "lab:flaky", file: "CALLS", failures: 9}}\n'
    text += '  d: {kind: python, function: {use: "lab:add"}, inputs: {x: c}}\n'
    outcome = go(lab(text.replace("CALLS", str(lab.root / "calls"))), lab.layout)
    assert states(outcome) == {"a": "done", "b": "done", "c": "failed", "d": "blocked"}
    assert "RuntimeError: not yet" in outcome.states["c"].reason
    assert outcome.exit_code == 1


def test_retries_then_succeeds(lab):
    calls = lab.root / "calls"
    call = f'{{use: "lab:flaky", file: "{calls}", failures: 2}}'
    text = f"name: r\nstages:\n  c: {{kind: python, retries: 2, function: {call}}}\n"
    outcome = go(lab(text), lab.layout)
    assert (states(outcome), calls.read_text()) == ({"c": "done"}, "xxx")
    events = [e["attempt"] for e in read_events(lab.layout, outcome.run) if e["type"] == "retry"]
    assert events == [2, 3]


def test_a_failed_gate_blocks_and_gives_exit_code_two_also_from_the_cache(lab):
    text = 'name: g\nstages:\n  g: {kind: python, function: "lab:gated"}\n'
    text += '  h: {kind: python, function: {use: "lab:add"}, inputs: {x: g}}\n'
    for first in ("done", "cached"):
        outcome = go(lab(text), lab.layout)
        assert states(outcome) == {"g": first, "h": "blocked"}
        assert outcome.exit_code == 2
        assert outcome.states["h"].reason == "the gate of g failed: accuracy"


def test_log_and_manifest_lie_in_the_artifact_and_work_is_gone(lab):
    outcome = go(lab(TWO), lab.layout)
    manifest = outcome.states["a"].manifest
    folder = lab.layout.artifact("python", manifest.key)
    assert "writing 3" in (folder / "step.log").read_text()
    assert manifest.metrics == {"value": 3}
    assert manifest.run == outcome.run
    assert outcome.states["b"].manifest.inputs[0].digest == manifest.outputs["result"].digest
    assert list((lab.layout.state / "work").iterdir()) == []


def test_loop_ends_early_and_what_follows_takes_the_last_that_ran(lab):
    text = """
name: loop
stages:
  start: {kind: python, function: {use: "lab:number", value: 1}}
  up:
    repeat:
      max: 4
      until: "grow.total >= 5"
      first: {grow: start}
      stages:
        grow: {kind: python, function: {use: "lab:add", extra: 2}, inputs: {x: previous.grow}}
  end: {kind: python, function: {use: "lab:add"}, inputs: {x: up.grow}}
"""
    outcome = go(lab(text), lab.layout)
    assert [s for n, s in states(outcome).items() if n.startswith("up")] == ["done", "done", "skipped", "skipped"]
    assert read(lab.layout, outcome.states["end"]) == "5"
    keys = {s.name: s.key for s in lab(text).steps}
    other = {s.name: s.key for s in lab(text.replace(">= 5", ">= 6")).steps}
    assert [n for n in keys if keys[n] != other[n]] == ["end"]


def spec_of(plan, layout, step="c"):
    folders = (Path(plan.file).parent,)
    return StepSpec(layout.root, "r", plan.recipe, folders, str(os.getpid()), plan.step(step), inputs={})


def test_two_concurrent_processes_execute_a_step_once(lab):
    calls = lab.root / "calls"
    plan = lab(f'name: o\nstages:\n  c: {{kind: python, function: {{use: "lab:count_calls", file: "{calls}"}}}}\n')
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=run_step, args=(replace(spec_of(plan, lab.layout), attempt=str(i)),)) for i in range(3)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [p.exitcode for p in both] == [0, 0, 0]
    assert calls.read_text() == "x"
    assert len(list(Store(lab.layout).manifests())) == 1


def test_a_killed_step_resumes_from_its_checkpoint_to_the_same_digest(lab):
    marker = lab.root / "told"
    call = f'{{use: "lab:slow_sum", rounds: 30, file: "{marker}"}}'
    plan = lab(f"name: k\nstages:\n  c: {{kind: python, function: {call}}}\n")
    process = multiprocessing.get_context("fork").Process(target=run_step, args=(spec_of(plan, lab.layout),))
    process.start()
    wait_for(lambda: marker.exists() and marker.read_text().count("\n") >= 5, alive=process.is_alive)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert Store(lab.layout).find("python", plan.step("c").key) is None
    resumed = go(plan, lab.layout).states["c"].manifest
    rounds = marker.read_text().split()
    assert (set(map(int, rounds)), rounds.count("0")) == (set(range(30)), 1)
    other = Layout(lab.root / "undisturbed")
    other.root.mkdir()
    whole = go(plan, other).states["c"].manifest
    assert whole.outputs == resumed.outputs


def test_checkpoints_of_another_key_are_refused_with_what_differs(lab):
    plan = lab(TWO)
    step = plan.step("a")
    other = step.identity | {"settings": {**step.identity["settings"], "function": {"use": "x", "value": 9}}}
    folder = lab.layout.work(step.key) / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "key.json").write_text(json.dumps({"key": "0" * 64, "identity": other}))
    with pytest.raises(StepError, match=r"function.use: x → .*:number"):
        run_step(spec_of(plan, lab.layout, "a"))


def test_checkpoints_whose_name_was_only_half_written_are_this_steps_own(lab):
    plan = lab(TWO)
    file = lab.layout.work(plan.step("a").key) / "checkpoints" / "key.json"
    with pytest.raises(KeyboardInterrupt), atomic_file(file) as fresh:
        raise KeyboardInterrupt
    fresh.write_text('{"key"')  # as a process leaves it that cannot tidy up
    assert run_step(spec_of(plan, lab.layout, "a")).step == "a"
    unknown = lab.layout.work(plan.step("b").key) / "checkpoints"
    unknown.mkdir(parents=True)
    (unknown / "state.json").write_text("{}")
    with pytest.raises(StepError, match="checkpoints without the key of their step"):
        run_step(spec_of(plan, lab.layout, "b"))


def test_a_damaged_artifact_is_restored_where_the_cache_has_it_else_made_again(lab):
    outcome = go(lab(TWO), lab.layout)
    folder = lab.layout.artifact("python", outcome.states["a"].manifest.key)
    (folder / "outputs/result/n.txt").unlink()
    verdict, why = explain_plan(lab(TWO), lab.layout)["a"]
    assert (verdict, why.split("; ")[-1]) == ("MISS", "a run restores it from DVC's cache")
    again = go(lab(TWO), lab.layout)
    assert states(again) == {"a": "cached", "b": "cached"}
    assert again.states["a"].reason.endswith("restored from DVC's cache: outputs/result/n.txt")
    (folder / "outputs/result/n.txt").unlink()
    shutil.rmtree(lab.layout.dvc_cache)
    assert explain_plan(lab(TWO), lab.layout)["a"][1].endswith("a run makes it again")
    assert states(go(lab(TWO), lab.layout)) == {"a": "done", "b": "cached"}
    assert (folder / "outputs/result/n.txt").read_text() == "3"


def test_inprocess_executor_reports_errors_as_step_errors(lab):
    plan = lab("name: o\nstages:\n  c: {kind: python, function: 'lab:number'}\n")
    handle = InProcess().submit(replace(spec_of(plan, lab.layout), inputs=None, root=None))
    assert handle.wait(10)
    with pytest.raises(StepError):
        handle.result()


def test_a_step_that_ends_before_the_first_look_is_reported_as_any_other(lab, monkeypatch):
    def over_at_once(executor, spec):
        running = RunningStep(spec)
        running.thread.join()
        return running

    monkeypatch.setattr(InProcess, "submit", over_at_once)
    plan = lab("name: quick\nstages:\n  a: {kind: python, function: 'lab:number'}\n")
    outcome = run_plan(plan, lab.layout, executor="inprocess", prefect=False)
    events = [e["state"] for e in read_events(lab.layout, outcome.run) if e["type"] == "step"]
    assert [state for state in events if state != "queued"] == ["running", "done"]
