import os
import signal
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError

from flows.deployments.deploy import write_prefect_yaml
from flows.deployments.deployables import list_recipe_files, make_deployable, make_deployables
from flows.deployments.flow_runs import find_run_of, read_flow_run, write_flow_run
from flows.execution.states import GateState, StepState
from flows.prefect_runs.artifacts import format_progress, make_artifact_key
from flows.prefect_runs.run_page import (
    describe_expected_time,
    describe_outcome,
    list_result_rows,
    make_plan_page,
    make_result_page,
)
from lineage.layout import Layout
from schemas.errors import RecipeError

RECIPE = """\
# yaml-language-server: $schema=https://example.org/not-this.json
#
# Some words (Doe et al. 2025, arXiv:2510.08141), see docs/recipes.md and https://example.org/page.
name: formed
description: What it is for.
tags: [demo]
seed: 11
profiles:
  big: {stages: {two: {function: {use: "math:sqrt"}}, three: {kind: python, function: "math:exp"}}}
  small: {seed: 4}
stages:
  # no part of the header: https://example.org/elsewhere
  one: {kind: python, function: "math:sqrt"}
  two: {kind: python, function: "math:sqrt", after: [one]}
"""


@pytest.fixture
def made(tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (tmp_path / "formlab.py").write_text("def ten(context):\n    return {}\n")
    text = RECIPE.replace("math:sqrt", "formlab:ten").replace("math:exp", "formlab:ten")
    (folder / "formed.yaml").write_text(text)
    return folder / "formed.yaml", Layout(tmp_path)


def test_the_form_is_typed_for_this_very_recipe(made, monkeypatch):
    path, layout = made
    monkeypatch.chdir(layout.root)
    one = make_deployable(path, layout)
    fields = one.form["properties"]
    assert list(fields) == ["profile", "seed", "from_stages", "to_stages", "overrides", "fresh"]
    assert fields["profile"]["enum"] == ["big", "small"]
    assert fields["to_stages"]["items"]["enum"] == ["one", "two", "three"]  # one that only a profile has, as well
    assert all(f["title"] and f["description"] for f in fields.values())
    assert {n: f["default"] for n, f in fields.items() if "default" in f} == {
        "from_stages": [],
        "to_stages": [],
        "overrides": [],
        "fresh": False,
    }
    assert "(11)" in fields["seed"]["description"]
    Draft202012Validator.check_schema(one.form)
    check = Draft202012Validator(one.form).validate
    check({"recipe": "x", "profile": "big", "seed": 0, "to_stages": ["two"], "overrides": ["stages.a.b=[1, 2]"]})
    for wrong in (
        {"profile": "huge"},
        {"seed": -1},
        {"seed": "7"},
        {"from_stages": ["four"]},
        {"overrides": ["stages.a.b"]},
        {"fresh": "yes"},
        {"profil": "big"},
    ):
        with pytest.raises(ValidationError):
            check(wrong)


def test_a_deployment_says_what_the_recipe_says_and_links_its_paper(made, monkeypatch):
    path, layout = made
    monkeypatch.chdir(layout.root)
    one = make_deployable(path, layout)
    assert one.tags == ["demo", "posttrain"]
    assert one.file == "recipes/formed.yaml"
    assert one.description.split("\n\n") == [
        "What it is for.",
        "[arXiv:2510.08141](https://arxiv.org/abs/2510.08141)",
        "`docs/recipes.md`",
        "[https://example.org/page](https://example.org/page)",
    ]


def test_an_invalid_recipe_is_reported_with_its_place_and_the_others_are_kept(made, monkeypatch):
    path, layout = made
    monkeypatch.chdir(layout.root)
    (path.parent / "bad.yaml").write_text("name: bad\nstages:\n  one: {kind: pyton}\n")
    stages = 'stages:\n  one: {kind: python, function: "formlab:ten"}\n'
    half = "name: half\nprofiles: {p: {stages: {one: {retries: -1}}}}\n"
    (path.parent / "profile.yaml").write_text(half + stages)
    (path.parent / "twin.yaml").write_text(f"name: formed\n{stages}")
    (path.parent / "algorithms").mkdir()
    (path.parent / "algorithms" / "grpo.yaml").write_text("advantage: gae\n")
    files = list_recipe_files(layout)
    assert [f.name for f in files] == ["bad.yaml", "formed.yaml", "profile.yaml", "twin.yaml"]
    good, wrong = make_deployables(files, layout)
    assert [one.recipe.name for one in good] == ["formed"]
    assert [str(error).partition(": ")[0].rpartition("/")[2] for error in wrong] == [
        "bad.yaml:3:15",
        "profile.yaml:2:40",
        "twin.yaml:1:1",
    ]
    assert "recipes/formed.yaml is called `formed` as well" in str(wrong[2])
    assert all(isinstance(error, RecipeError) for error in wrong)


def test_prefect_yaml_names_the_entrypoint_the_pool_and_the_recipe(made, monkeypatch):
    import yaml

    path, layout = made
    monkeypatch.chdir(layout.root)
    file = write_prefect_yaml([make_deployable(path, layout)], layout)
    content = yaml.safe_load(file.read_text())
    (deployment,) = content["deployments"]
    assert deployment["entrypoint"] == "flows/deployments/deployed.py:recipe_run"
    assert deployment["parameters"] == {"recipe": "recipes/formed.yaml"}
    assert deployment["work_pool"]["name"] == "posttrain"
    assert deployment["work_pool"]["job_variables"]["env"]["POSTTRAIN_ROOT"] == str(layout.root)
    assert [list(step) for step in content["pull"]] == [["prefect.deployments.steps.set_working_directory"]]
    directory = content["pull"][0]["prefect.deployments.steps.set_working_directory"]["directory"]
    assert (Path(directory) / "flows/deployments/deployed.py").is_file()


def plan_of(path, layout):
    from flows.planning.recipe_plan import plan_recipe

    return plan_recipe(path, layout)


def test_the_plan_says_hits_reasons_and_cost(made, monkeypatch):
    path, layout = made
    monkeypatch.chdir(layout.root)
    plan = plan_of(path, layout)
    verdicts = {"one": ("HIT", "made by run r1"), "two": ("MISS", "seed: 1 → 2 | x")}
    page = make_plan_page(plan, "r2", verdicts, {"one": 4.0, "two": 100.0})
    assert "**1 of 2 steps are cached.** The missing steps took 1.7 min when they last ran." in page
    assert "| one | python | ✓ HIT | made by run r1 |  | 1 | 4.0 s |" in page
    assert "| two | python | → MISS | seed: 1 → 2 \\| x |  | 1 | 1.7 min |" in page  # a bar would end the cell
    assert describe_expected_time(verdicts, {}) == "They have never run: their cost is unknown."
    assert describe_expected_time({**verdicts, "three": ("MISS", "")}, {"two": 5.0}).endswith("not known: three.")
    assert describe_expected_time({"one": ("HIT", "")}, {}) == "Nothing to run."


def test_results_say_states_intervals_and_links():
    class Made:
        kind, metrics = "evaluate", {"accuracy": 0.5, "note": "text"}
        row = {"model": "m", "metric": "accuracy", "family": "all", "value": 0.51234, "low": 0.4, "high": 0.6}
        details = {"table": [row]}
        run = key = "k"

    states = {"exam": StepState("exam", "done", "", Made(), 2.0), "next": StepState("next", "failed", "no\nluck")}
    (row,) = list_result_rows(states)
    assert row == {
        "evaluation": "exam",
        "model": "m",
        "metric": "accuracy",
        "family": "all",
        "value": 0.5123,
        "interval": "[0.400, 0.600]",
    }
    page = make_result_page(
        "r9", states, {"exam": "the same content as run r1 made"}, {"report": "[the report](http://x)"}
    )
    assert "**A step failed: 1 done, 1 failed. Finished artifacts are kept.**" in page
    assert "| next | failed |  |  | no luck |" in page
    assert "| m | accuracy | all | 0.5123 | [0.400, 0.600] |" in page
    assert "- Repeated: exam produced the same content as run r1 made" in page
    assert "- report: [the report](http://x)" in page
    stopped = {"exam": StepState("exam", "cancelled", "stopped")}
    assert describe_outcome(stopped).endswith("Finished artifacts are kept; continue with Retry or `posttrain resume`.")


def test_results_begin_with_gates_promotion_and_refusals():
    gates = (
        GateState(0, "accuracy", "rejected", "accuracy 0.1, wanted 0.9; rejected by ada: too long", "by ada: too long"),
        GateState(1, "f1", "passed", "f1 0.5, wanted >= 0.4"),
    )
    page = make_result_page(
        "r9", {"exam": StepState("exam", "done", gates=gates)}, {}, {}, "champion of chat unchanged: no gate passed"
    )
    lines = [line for line in page.splitlines() if line]
    assert lines[1].startswith("**A gate was rejected: ")
    assert lines[2:5] == [
        "- Gate of exam, rejected: accuracy 0.1, wanted 0.9; rejected by ada: too long",
        "- Gate of exam, passed: f1 0.5, wanted >= 0.4",
        "- Promotion: champion of chat unchanged: no gate passed",
    ]
    assert lines[5].startswith("| step |")


def test_progress_in_words_and_keys_of_artifacts():
    event = {"type": "progress", "step": "a", "at": 5, "total": 8, "loss": 0.123456, "ok": True}
    assert format_progress(event) == (62.5, "5 of 8, loss 0.1235")
    assert make_artifact_key("My_Recipe.v2", "progress-cold_start@lr=1") == "my-recipe-v2-progress-cold-start-lr-1"


def test_a_flow_run_finds_the_run_that_it_began(tmp_path):
    layout = Layout(tmp_path)
    for run, flow_run in (("r1", "f1"), ("r2", "f2")):
        layout.run(run).mkdir(parents=True)
        (layout.run(run) / "plan.json").write_text("{}")
        write_flow_run(layout, run, {"flow_run": flow_run, "parameters": {"seed": 3}})
    assert find_run_of(layout, "f1", "r1") == "r1"
    assert find_run_of(layout, "f1", "renamed by somebody") == "r1"
    assert find_run_of(layout, "f3", "r1") is None  # the name of another flow run's run
    assert read_flow_run(layout, "r2")["parameters"] == {"seed": 3}


def test_a_signal_to_end_stops_the_work_and_is_passed_on():
    from prefect.exceptions import TerminationSignal

    from flows.deployments.deployed import run_interruptibly

    seen = []

    def work(stop):
        os.kill(os.getpid(), signal.SIGUSR1)
        seen.append(stop.wait(60))
        os.kill(os.getpid(), signal.SIGUSR1)  # said twice
        seen.append("cleared away")

    def handler(number, frame):
        raise TerminationSignal(signal=number)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TerminationSignal):
            run_interruptibly(work)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [True, "cleared away"]
