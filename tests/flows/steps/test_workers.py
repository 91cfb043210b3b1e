import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from flows.planning.recipe_plan import plan_recipe
from flows.processes.locks import try_lock
from flows.runs.launch import run_plan
from flows.steps.ray_workers import STARTS, TRIES, RayWorkers
from lineage.layout import Layout
from schemas.errors import PlanError
from tests.waiting import wait_for

LAB = """
import os, subprocess, time
from pathlib import Path

def who(context, *, mark: int = 0):
    (context.output("result") / "pid.txt").write_text(f"{os.getpid()} {os.environ['OMP_NUM_THREADS']}")
    return {"pid": os.getpid()}

def hang(context, *, told: str):
    child = subprocess.Popen(["sleep", "600"])
    Path(told).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)
"""


def make(tmp_path, text):
    name = f"raylab_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(LAB)
    (tmp_path / "recipe.yaml").write_text(text.replace("lab:", f"{name}:"))
    layout = Layout(tmp_path / "root")
    layout.root.mkdir(exist_ok=True)
    return plan_recipe(tmp_path / "recipe.yaml", layout), layout


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_fresh_process_each_and_a_time_limit_ends_it_with_its_children(tmp_path):
    marker = tmp_path / "told"
    text = f"""
name: r
stages:
  a: {{kind: python, function: {{use: "lab:who", mark: 1}}}}
  b: {{kind: python, function: {{use: "lab:who", mark: 2}}, after: [a]}}
  c: {{kind: python, timeout: 2, after: [b], function: {{use: "lab:hang", told: "{marker}"}}}}
"""
    plan, layout = make(tmp_path, text)
    outcome = run_plan(plan, layout, prefect=False)
    pids = [outcome.states[n].manifest.metrics["pid"] for n in "ab"]
    assert len({*pids, os.getpid()}) == 3
    assert outcome.states["c"].state == "failed"
    assert "time limit of 2 s" in outcome.states["c"].reason
    killed = [int(p) for p in marker.read_text().split()]
    wait_for(lambda: not any(alive(p) for p in killed), 10)
    too_much, _ = make(
        tmp_path, 'name: x\nstages:\n  a: {kind: python, resources: {num_cpus: 4096}, function: "lab:who"}\n'
    )
    with pytest.raises(PlanError, match="a: no node has CPU 4096"):
        run_plan(too_much, layout, prefect=False)


def test_a_cluster_that_does_not_start_is_tried_again_and_then_reported(tmp_path):
    import ray

    tried = []

    def busy(**options):
        with try_lock(tmp_path / ".posttrain" / STARTS) as free:  # no other run of the checkout starts one now
            assert not free
        tried.append(options["_temp_dir"])
        assert Path(options["_temp_dir"]).is_dir()
        raise Exception("The current node timed out during startup.\nmore")

    with mock.patch.dict(os.environ), mock.patch.object(ray, "init", busy):
        os.environ.pop("RAY_ADDRESS", None)
        with pytest.raises(
            PlanError, match=f"Ray did not start, {TRIES} times: The current node timed out during startup.$"
        ):
            RayWorkers(Layout(tmp_path))
    assert len(set(tried)) == TRIES == 5
    with try_lock(tmp_path / ".posttrain" / STARTS) as free:
        assert free
    assert not any(Path(folder).exists() for folder in tried)


IMPORTED_BEFORE = """
import sys
import ray  # as TorchRL does when a step runs in this process
from pathlib import Path
from flows.steps.ray_workers import RayWorkers
from lineage.layout import Layout

workers = RayWorkers(Layout(Path(sys.argv[1])))
print(sorted(workers.essential))
workers.close()
"""


def test_a_cluster_starts_where_ray_was_imported_before(tmp_path):
    """Ray keeps the settings of its import: without the token of this run it could not reach its own server."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", IMPORTED_BEFORE, str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert ended.stdout.split("\n")[-2] == "['gcs_server', 'raylet']", ended.stderr
