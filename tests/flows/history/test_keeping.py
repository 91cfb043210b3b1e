"""What is cleared away, to the byte, and what never is: on real artifacts, DVC's cache and MLflow's registry."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.execution.active_runs import mark_active
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.artifacts.reclaim import count_freed_bytes
from lineage.artifacts.store import Store
from lineage.audit.log import read_entries
from lineage.layout import Layout
from lineage.tracing.ancestry import trace
from lineage.tracing.target import UnknownTarget
from lineage.verification.verify import verify
from tests.flows.checkout import REPOSITORY

LAB = '''
def number(context, *, value: int = 1, score: float = 0.0):
    """Files of its own, one that every value shares, and a number to rank by."""
    folder = context.output("result")
    (folder / "own.bin").write_bytes(bytes([value]) * 50_000)
    (folder / "shared.bin").write_bytes(b"x" * 30_000)
    return {"score": score}

def reads(context):
    size = sum(p.stat().st_size for p in context.input("inputs.x").iterdir())
    (context.output("result") / "n.txt").write_text(str(size))
'''
RECIPE = """
name: numbers
vars: {value: 1, score: 0.0}
stages:
  first: {kind: python, function: {use: "LAB:number", value: "${vars.value}", score: "${vars.score}"}}
  second: {kind: python, function: "LAB:reads", inputs: {x: first}}
"""


def used(*folders: Path) -> int:
    """Bytes that folders take on the disk, each file once whatever names it has."""
    sizes = {}
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            stat = path.lstat()
            sizes[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    return sum(sizes.values())


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Five runs of two steps: values 1 to 5, scored 5 to 1."""
    monkeypatch.setenv("POSTTRAIN_ROOT", str(tmp_path))
    lab = f"keeplab_{os.getpid()}_{tmp_path.name[-8:]}".replace("-", "_")
    (tmp_path / f"{lab}.py").write_text(LAB)
    (tmp_path / "numbers.yaml").write_text(RECIPE.replace("LAB", lab))
    return Layout(tmp_path)


def run(layout, value):
    plan = plan_recipe(
        layout.root / "numbers.yaml", layout, overrides=[f"vars.value={value}", f"vars.score={6.0 - value}"]
    )
    outcome = run_plan(plan, layout, executor="inprocess", prefect=False, run=f"run-{value}")
    assert outcome.exit_code == 0, outcome.states
    return {step.name: step.key for step in plan.steps}


def gc(*words):
    done = CliRunner().invoke(app, ["gc", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def here(layout):
    return {manifest.key for manifest in Store(layout).manifests()}


def places(layout):
    return layout.state / "artifacts", layout.state / "work", layout.dvc_cache


def test_ten_artifacts_are_cleared_to_the_byte_and_the_rest_verifies(checkout):
    keys = {value: run(checkout, value) for value in range(1, 6)}
    assert trace(checkout, keys[2]["second"]).up[-1].record["key"] == keys[2]["first"]
    tree = [path for path in places(checkout) if path.exists()]
    assert len(here(checkout)) == 10
    before = used(*tree)
    output = gc("--last", "1", "--keep", "1", "--by", "score")
    assert used(*tree) == before
    assert (output["removed"], len(output["artifacts"]), len(output["kept"])) == (False, 6, 4)
    done = gc("--last", "1", "--keep", "1", "--by", "score", "--yes")
    assert done["bytes"] == output["bytes"] == before - used(*tree)
    # Values 2, 3 and 4 go with their own 50 kB, twice: in the artifact and in the cache. What all share stays cached.
    assert done["bytes"] >= 3 * (2 * 50_000 + 30_000)
    assert here(checkout) == {*keys[5].values(), *keys[1].values()}
    assert verify(checkout).problems == ()
    with pytest.raises(UnknownTarget):
        trace(checkout, keys[2]["second"])
    (entry,) = [entry for entry in read_entries(checkout) if entry["action"] == "gc"]
    assert set(entry["facts"]["artifacts"]) == {key for value in (2, 3, 4) for key in keys[value].values()}
    assert entry["facts"]["bytes"] == done["bytes"]
    assert gc("--last", "1", "--keep", "1", "--by", "score")["bytes"] == 0


def test_the_best_by_a_metric_brings_its_run_and_what_is_pinned_all_above_it(checkout):
    keys = {value: run(checkout, value) for value in (1, 2, 3)}
    assert CliRunner().invoke(app, ["pin", keys[2]["second"]]).exit_code == 0
    gc("--last", "0", "--keep", "1", "--by", "score", "--yes")
    assert here(checkout) == {*keys[1].values(), *keys[2].values()}
    assert CliRunner().invoke(app, ["pin", keys[2]["second"], "--remove"]).exit_code == 0
    gc("--last", "0", "--yes")
    assert here(checkout) == set()
    assert list(checkout.dvc_cache.glob("*/*")) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_ancestor_of_what_any_alias_names_is_never_cleared(checkout, monkeypatch):
    from lineage.registry.client import open_client

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    keys = {value: run(checkout, value) for value in (1, 2)}
    mlflow = open_client(checkout)
    mlflow.create_registered_model("reader")
    for value, alias in ((1, "canary"), (2, None)):
        tags = {"key": keys[value]["second"], "output": "result"}
        version = mlflow.create_model_version("reader", "dvc:///files/x", tags=tags)
        if alias:
            mlflow.set_registered_model_alias("reader", alias, version.version)
    output = gc("--last", "0", "--yes")
    assert here(checkout) == set(keys[1].values())
    assert {kept["step"]: kept["why"] for kept in output["kept"]} == {
        "first": "made into what is kept: reader@canary",
        "second": "reader@canary",
    }
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "sqlite:////proc/nowhere/all.db")
    refused = CliRunner().invoke(app, ["gc", "--last", "0", "--yes"])
    assert (refused.exit_code, here(checkout)) == (1, set(keys[1].values()))
    assert "nothing is removed" in str(refused.exception)


def test_what_a_run_under_way_uses_stays_also_its_checkpoints(checkout):
    keys = {value: run(checkout, value) for value in (1, 2)}
    for key in (keys[1]["second"], "f" * 64):
        (checkout.work(key) / "checkpoints").mkdir(parents=True)
        (checkout.work(key) / "checkpoints/c.bin").write_bytes(b"c" * 9000)
    with mark_active(checkout, "run-1"):
        assert {a["key"] for a in gc("--last", "0")["artifacts"]} == set(keys[2].values())
    assert len(gc("--last", "0")["artifacts"]) == 4
    before = used(*places(checkout))
    output = gc("--last", "2", "--yes")
    assert output["works"] == ["f" * 64]
    assert output["bytes"] == before - used(*places(checkout)) >= 9000
    assert (checkout.work(keys[1]["second"]) / "checkpoints/c.bin").is_file()


def test_left_over_temporary_files_go_when_they_are_old(checkout):
    run(checkout, 1)
    folder = next(checkout.dvc_cache.iterdir())
    for name, age in ((".old.tmp", 7200), (".new.tmp", 60)):
        (folder / name).write_bytes(b"t" * 5000)
        os.utime(folder / name, (time.time() - age,) * 2)
    output = gc("--yes")
    assert (output["temporaries"], output["artifacts"]) == (1, [])
    assert not (folder / ".old.tmp").exists()
    assert (folder / ".new.tmp").exists()


def test_a_file_with_another_name_elsewhere_frees_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_bytes(b"1" * 8192)
    os.link(tmp_path / "a/x", tmp_path / "a/y")
    alone = count_freed_bytes([tmp_path / "a/x", tmp_path / "a/y"])
    assert alone == (tmp_path / "a/x").stat().st_blocks * 512 > 0
    os.link(tmp_path / "a/x", tmp_path / "elsewhere")
    assert count_freed_bytes([tmp_path / "a/x", tmp_path / "a/y"]) == 0


def test_what_dvc_itself_tracks_stays_in_the_cache(checkout):
    key = run(checkout, 1)["first"]
    manifest = Store(checkout).with_key(key)
    own = next(file for file in manifest.outputs["result"].files if file.path == "own.bin")
    (checkout.root / "data").mkdir()
    (checkout.root / "data/own.bin.dvc").write_text(f"outs:\n- md5: {own.md5}\n  hash: md5\n  path: own.bin\n")
    gc("--last", "0", "--yes")
    left = [path.parent.name + path.name for path in checkout.dvc_cache.glob("*/*")]
    assert left == [own.md5]


def test_a_metric_that_nothing_has_is_refused_with_those_there_are(checkout):
    run(checkout, 1)
    refused = CliRunner().invoke(app, ["gc", "--keep", "1", "--by", "accurcy"])
    assert refused.exit_code == 1
    assert "score" in str(refused.exception)
    shutil.rmtree(checkout.state)


WAITS = """
import time
from pathlib import Path

def first(context):
    (context.output("result") / "n.txt").write_text("1")

def waits(context, *, until: str):
    (context.checkpoints / "c.txt").write_text("begun")
    while not Path(until).exists():
        time.sleep(0.05)
    (context.output("result") / "n.txt").write_text((context.input("inputs.x") / "n.txt").read_text())
"""


@pytest.mark.slow
def test_clearing_during_a_run_of_another_process_removes_nothing_of_it(checkout, processes):
    (checkout.root / "waitlab.py").write_text(WAITS)
    (checkout.root / "waits.yaml").write_text(
        'name: waits\nstages:\n  a: {kind: python, function: "waitlab:first"}\n'
        f'  b: {{kind: python, function: {{use: "waitlab:waits", until: "{checkout.root}/go"}}, inputs: {{x: a}}}}\n'
    )
    run(checkout, 1)
    command = [sys.executable, "-m", "flows.cli", "run", "waits.yaml", "--executor", "inprocess"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=checkout.root, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            processes.wait_for(lambda: list(checkout.state.glob("work/*/checkpoints/c.txt")), 300)
            output = gc("--last", "0", "--yes")
            (checkout.root / "go").touch()
            assert process.wait(300) == 0
        finally:
            process.kill()
    assert {artifact["recipe"] for artifact in output["artifacts"]} == {"numbers"}
    assert [kept["step"] for kept in output["kept"]] == ["a"]
    assert {m.step for m in Store(checkout).manifests()} == {"a", "b"}
    assert verify(checkout).problems == ()
