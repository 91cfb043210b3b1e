"""A deployed recipe, from the form in Prefect's UI to the curves in MLflow's; cancelled and retried on the way."""

import json
import os
import subprocess
import sys

import pytest

from tests.flows.checkout import REPOSITORY, Checkout
from tests.flows.prefect_runs.browser import Served, open_browser

RECIPE = """
name: story
description: Tiny models, and a stage that waits for a file.
tags: [demo]
seed: 3
profiles:
  short: {stages: {cold_start: {max_steps: 12, logging_steps: 2}}}
stages:
  base:
    kind: init
    config:
      model_type: qwen3
      hidden_size: 16
      intermediate_size: 32
      num_hidden_layers: 1
      num_attention_heads: 2
      num_key_value_heads: 2
      head_dim: 8
    max_length: 96
  lessons:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 12, style: short}]
    teacher: answer
  cold_start: {kind: sft, model: base, data: lessons, max_steps: 20, per_device_train_batch_size: 4, max_length: 96}
  held: {kind: python, function: "story_lab:held", inputs: {model: cold_start}}
  exam:
    kind: evaluate
    models: {base: base, cold_start: cold_start}
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 6, style: short}]
    max_completion_length: 4
    num_bootstrap: 100
    after: [held]
"""
LAB = '''
import time
from pathlib import Path


def held(context):
    """Wait for a file; the checkpoints tell how often it was tried."""
    tries = context.checkpoints / "tries.txt"
    tries.write_text((tries.read_text() if tries.exists() else "") + "try ")
    number = 0
    while not Path(__file__).with_name("go").exists():
        number += 1
        print("waiting", number, flush=True)
        context.progress(min(number, 99), 100)
        time.sleep(0.5)
    (context.output("result") / "tries.txt").write_text(tries.read_text())
    return {"tries": len(tries.read_text().split())}
'''
QUICK = """
name: quick
stages:
  one: {kind: python, function: "quick_lab:counted"}
  two: {kind: python, function: "quick_lab:needs", inputs: {x: one}}
  three: {kind: python, function: "quick_lab:counted", inputs: {x: two}}
"""
QUICK_LAB = '''
from pathlib import Path

HERE = Path(__file__).parent


def counted(context):
    """Leave a trace of every time it runs."""
    with (HERE / "ran.txt").open("a") as stream:
        stream.write("counted\\n")
    (context.output("result") / "x.txt").write_text("x")
    print("counted once more")


def needs(context):
    """Fail until a file is there."""
    (context.output("result") / "x.txt").write_text((HERE / "luck").read_text())
'''


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("pages")
    checkout = Checkout(root, "", {"story_lab": LAB, "quick_lab": QUICK_LAB})
    recipes = root / "recipes"
    recipes.mkdir()
    (recipes / "story.yaml").write_text(RECIPE)
    (recipes / "quick.yaml").write_text(QUICK)
    (recipes / "broken.yaml").write_text("name: broken\nstages:\n  one: {kind: pyton}\n")
    up = Served(checkout)
    deploying = checkout.start("deploy", "--all")
    assert deploying.wait(300) == 3, checkout.output.read_text()
    output = checkout.output.read_text()
    assert "story/story: deployed" in output
    assert "recipes/broken.yaml:3:15" in output
    (recipes / "broken.yaml").unlink()
    yield up
    up.close()
    checkout.is_quiet(60)


def field(page, title):
    label = f"xpath=//label[.//span[starts-with(normalize-space(),'{title}')]]"
    return page.locator(f"{label}/following::fieldset[1]")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_run_from_the_form_to_the_curves_cancelled_and_retried(served, tmp_path):
    with open_browser() as page:
        ui = served.api.removesuffix("/api")
        page.goto(f"{ui}/deployments/deployment/{served.deployment('story')['id']}/run")
        field(page, "Profile").locator("button").wait_for()
        page.get_by_text("Named set of overrides in the recipe").wait_for()
        page.wait_for_timeout(2000)  # the page draws its form twice
        field(page, "Profile").locator("button").press("ArrowDown")
        page.get_by_role("option", name="short").click()
        field(page, "Seed").locator("input").fill("5")
        field(page, "Overrides").get_by_text("Add item").click()
        field(page, "Overrides").locator("input,textarea").last.fill("stages.exam.num_bootstrap=200")
        page.screenshot(path=tmp_path / "form.png")
        page.get_by_role("button", name="Submit").click()
        (flow_run,) = served.until(lambda: served.runs_of("story"))
        number = flow_run["id"]
        assert flow_run["parameters"] == {
            "recipe": "recipes/story.yaml",
            "profile": "short",
            "seed": 5,
            "from_stages": [],
            "to_stages": [],
            "overrides": ["stages.exam.num_bootstrap=200"],
            "fresh": False,
        }
        served.until(lambda: "story-progress-held" in [a["key"] for a in served.artifacts(number)])
        run = served.ask(f"/flow_runs/{number}")["name"]
        plan = json.loads((served.checkout.layout.run(run) / "plan.json").read_text())
        settings = {step["name"]: step["settings"] for step in plan["steps"]}
        assert (settings["cold_start"]["max_steps"], settings["exam"]["num_bootstrap"]) == (12, 200)
        assert {step["seed"] for step in plan["steps"]} == {5}
        served.until(lambda: served.tasks(number).get("exam") == "Pending")  # by its name, although it waits

        page.goto(f"{ui}/runs/flow-run/{number}")
        page.get_by_text(run).first.wait_for()
        page.locator("canvas").first.wait_for()
        page.get_by_text("waiting 1", exact=True).first.wait_for()  # what the step prints, in the run's log
        page.screenshot(path=tmp_path / "run.png")
        page.get_by_text("Artifacts", exact=True).click()
        page.get_by_text("story-plan").first.click()
        page.get_by_text("0 of 5 steps are cached.").wait_for()
        page.screenshot(path=tmp_path / "plan.png")

        page.goto(f"{ui}/runs/flow-run/{number}")
        page.get_by_role("button", name="Cancel").first.click()
        page.get_by_role("button", name="Confirm").click()
        assert served.ended(number)["state_type"] == "CANCELLED"
        served.until(lambda: not ours(served, ("ray", "prefect.engine", "_workspace")))
        # Of one attempt so far; Prefect's server cancels what never began, seconds later, and counts no attempt for it.
        states = {"base": "Completed", "lessons": "Completed", "cold_start": "Completed"}
        served.until(lambda: served.tasks(number) == states | {"held": "Cancelled", "exam": "Cancelled"})
        assert any(f"posttrain resume {run}" in line for line in served.logs(number))
        assert f"stopped (continue with: posttrain resume {run})" in said(served, "status")

        (served.checkout.layout.root / "go").touch()
        page.goto(f"{ui}/runs/flow-run/{number}")
        page.get_by_role("button", name="Retry").first.click()
        page.get_by_text("Retry Flow Run").or_(page.get_by_role("button", name="Close")).first.wait_for()
        page.get_by_role("button", name="Retry").last.click()
        served.until(lambda: served.ask(f"/flow_runs/{number}")["run_count"] == 2)
        assert served.ended(number)["state_name"] == "Completed", served.logs(number)
        assert served.ask(f"/flow_runs/{number}")["name"] == run
        assert served.until(lambda: len(served.tasks(number, 2)) == 5 and served.tasks(number, 2)) == {
            "base": "Cached",
            "lessons": "Cached",
            "cold_start": "Cached",
            "held": "Completed",
            "exam": "Completed",
        }
        (tries,) = served.checkout.layout.state.glob("artifacts/python-*/outputs/result/tries.txt")
        assert tries.read_text() == "try try "  # the second try found the first one's checkpoints
        page.reload()
        page.get_by_text("Completed", exact=True).first.wait_for()
        page.wait_for_timeout(3000)
        page.screenshot(path=tmp_path / "retried.png")
        look_at_results(served, page, number, tmp_path)


def look_at_results(served, page, number, folder):
    """The pages of the results in Prefect, and those of the run in MLflow."""
    artifacts = {a["key"]: a for a in reversed(served.artifacts(number))}
    rows = json.loads(artifacts["story-table"]["data"])
    assert {(row["model"], row["family"]) for row in rows} == {
        (m, f) for m in ("base", "cold_start") for f in ("all", "chain_sum")
    }
    page.goto(f"{served.api.removesuffix('/api')}/artifacts/artifact/{artifacts['story-results']['id']}")
    page.get_by_text("All is well: 3 cached, 2 done.").wait_for()
    page.screenshot(path=folder / "results.png")
    address = artifacts["story-report"]["data"].partition("](")[2].rstrip(")")
    link = page.get_by_role("link", name="curves, datasets and models in MLflow")
    assert link.get_attribute("href") == address.partition("/artifacts")[0]
    assert address.startswith(served.mlflow)
    page.goto(address)
    report = page.frame_locator("iframe").first
    report.get_by_text("Steps", exact=True).first.wait_for()
    page.screenshot(path=folder / "report.png")
    page.goto(address.partition("/artifacts")[0])
    page.get_by_text("cold_start/loss").first.wait_for()
    page.screenshot(path=folder / "mlflow.png")
    child, points = mlflow_child(served, "cold_start")
    assert points == [2, 4, 6, 8, 10, 12]  # told by the run that made it, although a cancelled try did
    page.goto(f"{address.partition('/runs/')[0]}/runs/{child}/model-metrics")
    page.get_by_text("loss", exact=True).first.wait_for()
    page.wait_for_timeout(3000)
    page.screenshot(path=folder / "curves.png")
    page.goto(f"{address.partition('/runs/')[0]}/runs/{child}")
    page.get_by_text("Datasets").first.wait_for()
    page.get_by_text("lessons").first.wait_for()
    page.screenshot(path=folder / "datasets.png")


def mlflow_child(served, step):
    """Id of the run that stands for the step in MLflow, and where its curve of the loss has points."""
    from mlflow import MlflowClient

    client = MlflowClient(served.mlflow)
    experiments = [e.experiment_id for e in client.search_experiments()]
    condition = f"tags.`posttrain.step` = '{step}'"
    (child,) = client.search_runs(experiments, condition)
    history = client.get_metric_history(child.info.run_id, "train/loss")
    return child.info.run_id, sorted({point.step for point in history})


def ours(served, words):
    return [p for p in served.checkout.processes() if any(word in " ".join(p.cmdline()) for word in words)]


def said(served, *words):
    process = served.checkout.start(*words)
    process.wait(120)
    return " ".join(served.checkout.output.read_text().split())


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_failed_run_is_retried_at_the_failed_stage_and_a_fresh_one_does_it_all_again(served):
    root = served.checkout.layout.root
    assert served.start("quick", to_stages=["four"])["refused"] == 409
    assert served.start("quick", stage="two")["refused"] == 409
    first = served.start("quick")["id"]
    failed = served.ended(first)
    assert failed["state_name"] == "Failed"
    assert failed["state"]["message"] == "exit code 1: 1 done, 1 failed, 1 blocked"
    assert served.tasks(first) == {"one": "Completed", "two": "Failed", "three": "Blocked"}
    assert "counted once more" in served.logs(first)
    assert not [line for line in served.logs(first) if "Engine execution exited" in line]
    (root / "luck").write_text("good")
    assert served.set_state(first, "SCHEDULED", "AwaitingRetry") == "ACCEPT"
    served.until(lambda: served.ask(f"/flow_runs/{first}")["run_count"] == 2)
    assert served.ended(first)["state"]["message"] == "1 cached, 2 done"
    assert served.tasks(first, 2) == {"one": "Cached", "two": "Completed", "three": "Completed"}
    assert (root / "ran.txt").read_text() == "counted\n" * 2
    again = served.start("quick", from_stages=["two"], fresh=True)["id"]
    assert served.ended(again)["state"]["message"] == "1 cached, 2 done"
    assert (root / "ran.txt").read_text() == "counted\n" * 3
    page = next(a["data"] for a in served.artifacts(again) if a["key"] == "quick-results")
    assert f"Repeated: two produced the same content as run {failed['name']} made" in page
    wrong = served.ended(served.start("quick", overrides=["stages.two.nothing=1"])["id"])
    assert wrong["state_name"] == "Failed"
    assert wrong["state"]["message"].startswith("--set stages.two.nothing=1:1:1: stages.two")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_deploying_again_updates_and_vanished_recipes_are_reported_then_removed(served):
    recipe = served.checkout.layout.root / "recipes" / "late.yaml"
    recipe.write_text(QUICK.replace("name: quick", "name: late\ndescription: First."))
    assert "late/late: deployed" in said(served, "deploy", recipe)
    recipe.write_text(QUICK.replace("name: quick", "name: late\ndescription: Second."))
    assert "late/late: updated" in said(served, "deploy", recipe)
    assert served.deployment("late")["description"] == "Second."
    recipe.unlink()
    assert "late: its recipe is gone (--prune removes it)" in said(served, "deploy", "--all")
    assert served.deployment("late")["name"] == "late"
    assert "late: removed" in said(served, "deploy", "--all", "--prune")
    assert served.deployment("late")["refused"] == 404


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_prefects_own_deploy_takes_the_file_that_is_written_for_it(served):
    from flows.servers.prefect_server import make_prefect_environment

    said(served, "deploy", "--all", "--prefect-yaml")
    file = served.checkout.layout.root / "prefect.yaml"
    environment = {**os.environ, **make_prefect_environment(served.checkout.layout)}
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file],
        cwd=REPOSITORY,
        env=environment | {"PREFECT_API_URL": served.api, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = served.ask("/deployments/name/recipe/quick")
    assert made["parameters"] == {"recipe": "recipes/quick.yaml"}
    assert made["work_pool_name"] == "posttrain"
    run = served.ask(f"/deployments/{made['id']}/create_flow_run", {"parameters": {"to_stages": ["one"]}})
    assert served.ended(run["id"])["state"]["message"] == "nothing changed: 1 of 1 cached"
