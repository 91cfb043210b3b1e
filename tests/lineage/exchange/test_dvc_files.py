import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.planning.compile import compile_recipe
from lineage.exchange.dvc_files import project_dvc, render_pipeline, write_pipeline
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.plan import Until
from schemas.recipe.load import load_recipe

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(small_run):
    """The small run in a folder outside of git, without a template of plots."""
    assert not (small_run.layout.root / ".dvc/plots").exists()
    return small_run


def dvc(root, *words, code=0):
    command = [sys.executable, "-W", "ignore", "-m", "dvc", *words]
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1", "PATH": f"{root / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_pipeline_needs_no_run_and_is_the_same_each_time(small_run):
    root = small_run.layout.root
    write_pipeline(small_run.layout, small_run.plan())
    first = (root / "dvc.yaml").read_bytes()
    write_pipeline(small_run.layout, small_run.plan())
    assert (root / "dvc.yaml").read_bytes() == first
    stages = yaml.safe_load(first)["stages"]
    assert list(stages) == ["base", "lessons", "lessons_clean", "tuned", "raw"]
    assert stages["tuned"]["deps"] == ["data/runs/small/base/policy", "data/runs/small/lessons_clean/data"]
    assert stages["tuned"]["params"] == [{"recipes/small.yaml": ["stages.tuned", "vars.rate", "seed"]}]
    assert not (root / "dvc.lock").exists()


def test_the_shipped_pipeline_is_what_the_shipped_recipe_says(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    layout = Layout(REPOSITORY)
    plan = compile_recipe(load_recipe(Path("recipes/quickstart.yaml")), layout)
    text, stages = render_pipeline(layout, plan)
    if (REPOSITORY / "dvc.yaml").read_text().splitlines()[0] == text.splitlines()[0]:  # no other recipe ran since
        assert (REPOSITORY / "dvc.yaml").read_text() == text
    assert "stages.report.tasks" in stages["lessons_clean"]["params"][0]["recipes/quickstart.yaml"]


def test_a_part_of_a_plan_keeps_the_other_stages(small_run):
    whole = small_run.plan()
    project_dvc(small_run.layout, whole, succeeded=True)
    before = [(small_run.layout.root / name).read_bytes() for name in ("dvc.yaml", "dvc.lock")]
    part = whole.model_copy(update={"steps": tuple(s for s in whole.steps if s.name in ("base", "lessons"))})
    project_dvc(small_run.layout, part, succeeded=True)
    assert set(yaml.safe_load(before[0])["stages"]) - {"raw"} == set(
        yaml.safe_load((small_run.layout.root / "dvc.yaml").read_text())["stages"]
    )
    lock = yaml.safe_load((small_run.layout.root / "dvc.lock").read_text())["stages"]
    assert "tuned,loss,4,0.25" in (small_run.layout.root / "data/runs/small/curves.csv").read_text()
    assert lock["tuned"] == yaml.safe_load(before[1])["stages"]["tuned"]


def test_outputs_are_links_with_numbers_and_curves_next_to_them(small_run):
    project_dvc(small_run.layout, small_run.plan(), succeeded=True)
    folder = small_run.layout.root / "data/runs/small"
    artifact = small_run.store.output_folder("sft", small_run.made["tuned"].key, "policy") / "model.safetensors"
    assert (folder / "tuned/policy/model.safetensors").samefile(artifact)
    assert json.loads((folder / "metrics/tuned.json").read_text()) == {"loss": 0.25, "converged": True, "note": "fine"}
    curves = (folder / "curves.csv").read_text().splitlines()
    assert curves == ["stage,figure,step,value", "tuned,loss,1,1.0", "tuned,loss,2,0.5", "tuned,loss,4,0.25"]
    newer = small_run.make("base", "init", {"policy": {"model.safetensors": b"new"}}, {"policy": "policy"}, salt="2")
    project_dvc(small_run.layout, small_run.plan(), succeeded=True)
    assert (folder / "base/policy/model.safetensors").read_bytes() == b"new"
    assert not (folder / "base/policy/config.json").exists()
    assert newer.outputs["policy"].dvc in (small_run.layout.root / "dvc.lock").read_text()
    assert not list(folder.rglob(".*"))


def test_dvc_files_follow_the_recipe_that_succeeded_last(small_run):
    root, plan = small_run.layout.root, small_run.plan()
    project_dvc(small_run.layout, plan, succeeded=False)
    assert not (root / "dvc.yaml").exists()
    project_dvc(small_run.layout, plan, succeeded=True)
    before = [(root / name).read_bytes() for name in ("dvc.yaml", "dvc.lock")]
    (root / "recipes/other.yaml").write_text((root / "recipes/small.yaml").read_text())
    other = plan.model_copy(update={"file": "recipes/other.yaml"})
    project_dvc(small_run.layout, other, succeeded=False)
    assert [(root / name).read_bytes() for name in ("dvc.yaml", "dvc.lock")] == before
    part = other.model_copy(update={"steps": tuple(s for s in plan.steps if s.name == "base")})
    project_dvc(small_run.layout, part, succeeded=True)
    stages, locked = (yaml.safe_load((root / name).read_text())["stages"] for name in ("dvc.yaml", "dvc.lock"))
    assert list(stages) == list(locked) == ["base"]
    assert stages["base"]["cmd"] == locked["base"]["cmd"] == "posttrain run recipes/other.yaml --to base"
    project_dvc(small_run.layout, plan, succeeded=False)
    assert list(yaml.safe_load((root / "dvc.yaml").read_text())["stages"]) == ["base"]
    project_dvc(small_run.layout, plan, succeeded=True)
    assert [(root / name).read_bytes() for name in ("dvc.yaml", "dvc.lock")] == before


def test_a_dvc_yaml_of_someone_else_stays(small_run):
    own = small_run.layout.root / "dvc.yaml"
    own.write_text("stages: {mine: {cmd: make}}\n")
    project_dvc(small_run.layout, small_run.plan(), succeeded=True)
    with pytest.raises(PlanError, match="was not written by posttrain and stays as it is"):
        write_pipeline(small_run.layout, small_run.plan())
    assert own.read_text() == "stages: {mine: {cmd: make}}\n"


def test_a_profile_or_an_override_leaves_dvc_files_alone(small_run):
    project_dvc(small_run.layout, small_run.plan(), succeeded=True)
    root = small_run.layout.root
    before = [(root / name).read_bytes() for name in ("dvc.yaml", "dvc.lock")]
    plan = small_run.plan()
    small_run.make("base", "init", {"policy": {"config.json": b"[]"}}, {"policy": "policy"}, salt="9")
    for other in (
        small_run.plan().model_copy(update={"resolved": {**plan.resolved, "seed": 8}}),
        small_run.plan().model_copy(update={"file": "../elsewhere.yaml"}),
    ):
        project_dvc(small_run.layout, other, succeeded=True)
        assert [(root / name).read_bytes() for name in ("dvc.yaml", "dvc.lock")] == before
    project_dvc(small_run.layout, small_run.plan(), succeeded=True)
    assert (root / "dvc.lock").read_bytes() != before[1]


def test_a_loop_is_refused(small_run):
    plan = small_run.plan()
    looped = plan.steps[-1].model_copy(update={"unless": (Until(step="base", metric="m", op=">", value=1),)})
    with pytest.raises(PlanError, match="part of a loop"):
        write_pipeline(small_run.layout, plan.model_copy(update={"steps": (*plan.steps[:-1], looped)}))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed: 7\n", "seed: 7\nschedule: {on_change: [path:./feedback, mlflow:tutor@champion]}\n"),
        ("tokenizer: {use: characters}", "tokenizer: {use: characters, chat_template: path:x.jinja}"),
    ],
)
def test_a_recipe_that_dvc_cannot_read_is_one_file_for_all_stages(checkout, old, new):
    root = checkout.layout.root
    recipe = root / "recipes/small.yaml"
    recipe.write_text(recipe.read_text().replace(old, new))
    del checkout.made["raw"]
    project_dvc(checkout.layout, checkout.plan(), succeeded=True)
    text = (root / "dvc.yaml").read_text()
    line = recipe.read_text().partition("path:")[0].count("\n") + 1
    assert f"# DVC cannot read that file (line {line}: found unexpected ':')" in text
    for stage in yaml.safe_load(text)["stages"].values():
        assert "params" not in stage
        assert stage["deps"][-1] == "recipes/small.yaml"
    assert "up to date" in dvc(root, "status")
    recipe.write_text(recipe.read_text().replace("rate: 0.1}", "rate: 0.2}"))
    assert "recipes/small.yaml" in dvc(root, "status")


def test_dvc_agrees(checkout):
    """status, dag, metrics, plots, checkout, push; and repro does nothing, then what a changed value asks for."""
    root = checkout.layout.root
    del checkout.made["raw"]
    project_dvc(checkout.layout, checkout.plan(), succeeded=True)
    assert "up to date" in dvc(root, "status")
    assert dvc(root, "repro", "--dry").count("didn't change, skipping") == 4
    assert "lessons_clean" in dvc(root, "dag", "--md")
    assert "0.25" in dvc(root, "metrics", "show")
    dvc(root, "plots", "show", "-o", "plots")
    drawn = (root / "plots/index.html").read_text()
    assert '"figure": "loss"' in drawn
    assert '"value": 0.25' in drawn or '"value": "0.25"' in drawn
    shutil.rmtree(root / "data/runs/small/tuned")
    dvc(root, "checkout")
    assert (root / "data/runs/small/tuned/policy/model.safetensors").read_bytes() == b"w1"
    dvc(root, "remote", "add", "-d", "there", str(root / "there"))
    dvc(root, "push")
    assert len([p for p in (root / "there").rglob("*") if p.is_file()]) == 6 + 5  # files and listings
    recipe = root / "recipes/small.yaml"
    recipe.write_text(recipe.read_text().replace("rate: 0.1}", "rate: 0.2}"))
    assert [line.strip(":") for line in dvc(root, "status").splitlines() if not line.startswith("\t")] == ["tuned"]
    (root / "bin").mkdir()
    (root / "bin/posttrain").write_text('#!/bin/sh\necho "$@" >> ran\n')
    (root / "bin/posttrain").chmod(0o755)
    dvc(root, "repro")
    assert (root / "ran").read_text() == "run recipes/small.yaml --to tuned\n"
    assert "up to date" in dvc(root, "status")
