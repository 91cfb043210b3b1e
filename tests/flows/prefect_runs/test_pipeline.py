import json
import os
import urllib.request

import pytest

import flows.runs.launch
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from flows.servers.prefect_server import is_healthy
from lineage.layout import Layout

LAB = """
def number(context, *, value: int = 1):
    print("the value is", value)
    (context.output("result") / "n.txt").write_text(str(value))

def broken(context):
    raise ValueError("no")
"""
RECIPE = """
name: shown
stages:
  a: {kind: python, function: {use: "lab:number", value: 3}}
  b: {kind: python, function: "lab:number", inputs: {x: a}}
  c: {kind: python, function: "lab:broken", inputs: {x: a}}
  d: {kind: python, function: "lab:number", inputs: {x: c}}
"""


def ask(url, path, body):
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_prefect_shows_every_step_with_its_state_and_log(tmp_path, monkeypatch):
    name = f"shownlab_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(LAB)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("lab:", f"{name}:"))
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.delenv("PREFECT_API_URL")
    layout = Layout(tmp_path / "root")
    layout.root.mkdir()
    plan = plan_recipe(tmp_path / "recipe.yaml", layout)
    run_plan(plan_recipe(tmp_path / "recipe.yaml", layout, to=["a"]), layout, executor="inprocess", prefect=False)
    seen = {}
    original = flows.runs.launch._perform_all  # Prefect reads its environment when imported, so not before the run

    def spied(execution, *rest):
        try:
            return original(execution, *rest)
        finally:
            url = os.environ["PREFECT_API_URL"]
            seen["url"] = url
            for _ in range(100):  # task runs are recorded from events, a little late
                runs = ask(url, "/task_runs/filter", {})
                if len(runs) == 4 and all(r["state_type"] in ("COMPLETED", "FAILED") for r in runs):
                    break
            seen["runs"] = {r["name"]: r["state_name"] for r in runs}
            seen["flows"] = [(r["name"], r["state_type"]) for r in ask(url, "/flow_runs/filter", {})]
            names = {r["id"]: r["name"] for r in runs}
            seen["logs"] = [(names.get(line["task_run_id"]), line["message"]) for line in ask(url, "/logs/filter", {})]

    monkeypatch.setattr(flows.runs.launch, "_perform_all", spied)
    outcome = run_plan(plan, layout)
    assert {n: s.state for n, s in outcome.states.items()} == {
        "a": "cached",
        "b": "done",
        "c": "failed",
        "d": "blocked",
    }
    assert seen["runs"] == {"a": "Cached", "b": "Completed", "c": "Failed", "d": "Blocked"}
    assert seen["flows"] == [(outcome.run, "FAILED")]
    assert ("b", "the value is 1") in seen["logs"]  # in the task run of its own stage
    assert {name for name, message in seen["logs"] if "the value is" in message} == {"b"}
    assert not [message for _, message in seen["logs"] if "NoneType" in message]
    assert not is_healthy(seen["url"])
    assert not (layout.state / "prefect" / "server.json").exists()
