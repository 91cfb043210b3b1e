"""Two runs of one recipe at the same time: each step is done once, and both end well."""

import pytest

WORK = """
import time
from pathlib import Path

def once(context, *, file: str, name: str):
    with open(file, "a") as stream:
        stream.write(name + "\\n")
    time.sleep(0.4)
    before = [(p / "n.txt").read_text() for n, p in sorted(context.inputs.items()) if n.startswith("inputs.")]
    (context.output("result") / "n.txt").write_text(name + "".join(before))
"""
RECIPE = """
name: shared
stages:
  a: {kind: python, function: {use: "shared_work:once", file: "DONE", name: a}}
  b: {kind: python, function: {use: "shared_work:once", file: "DONE", name: b}, inputs: {x: a}}
  c: {kind: python, function: {use: "shared_work:once", file: "DONE", name: c}, inputs: {x: a}}
  d: {kind: python, function: {use: "shared_work:once", file: "DONE", name: d}, inputs: {x: b, y: c}}
"""


@pytest.mark.parametrize("executor", ["inprocess", pytest.param("ray", marks=pytest.mark.slow)])
def test_each_step_is_done_once(checkout, tmp_path, executor):
    done = tmp_path / "done.txt"
    made = checkout("root", RECIPE.replace("DONE", str(done)), {"shared_work": WORK})
    both = [made.run(executor) for _ in range(2)]
    for process in both:
        made.finish(process)
    assert sorted(done.read_text().split()) == ["a", "b", "c", "d"]
    assert set(made.digests()) == set("abcd")
    texts = {p.read_text() for p in made.layout.state.glob("artifacts/*/outputs/result/n.txt")}
    assert texts == {"a", "ba", "ca", "dbaca"}
    made.is_quiet()
    assert made.leftovers() == []
    assert len(list(made.layout.state.glob("runs/*/plan.json"))) == 2
