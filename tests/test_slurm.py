"""deploy/slurm: the real script on two nodes of a Slurm that is played here, with a real Ray process for each node.

`srun` and `scontrol` are stand-ins on PATH: a node is an address of this machine (127.0.0.2 is this machine too, and
Ray takes it for another node).
"""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lineage.artifacts.store import Store
from lineage.layout import Layout

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "slurm"
SCRIPT = FOLDER / "posttrain.sbatch"
SRUN = """#!{python}
import os, re, signal, subprocess, sys
words, command, nodes = sys.argv[1:], [], None
while words and words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    nodes = value.split(",") if name == "--nodelist" else nodes
if words[0] == "hostname":
    print("127.0.0.1")
    sys.exit()
with open(os.environ["PLAYED"], "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
def own(node):
    given = any(word.startswith("--node-ip-address") for word in words)
    return [] if given else [f"--node-ip-address=127.0.0.{{1 + int(node[-1])}}"]
held = [subprocess.Popen([*words[:4], *own(node), "--object-store-memory=80000000", *words[4:]],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for node in nodes]
signal.signal(signal.SIGTERM, lambda *_: [one.send_signal(signal.SIGTERM) for one in held])
sys.exit(max(one.wait() for one in held))
"""
SCONTROL = """#!/bin/sh
[ "$1 $2" = "show hostnames" ] && printf 'node0\\nnode1\\n'
"""
WORK = """
import os, time

def where(context, *, mark: int = 0):
    (context.output("result") / "n.txt").write_text(str(mark))
    return {"raylet": os.getppid()}

def long(context, *, seconds: float = 600.0):
    (context.output("result") / "n.txt").write_text("begun")
    while True:
        time.sleep(0.1)
"""
RECIPE = """
name: nodes
stages:
  a: {kind: python, function: {use: "slurm_work:where", mark: 1}}
  b: {kind: python, function: {use: "slurm_work:where", mark: 2}}
"""


def executable(file, text):
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def job(tmp_path):
    """Start the script as Slurm would; everything that it started is ended afterwards."""
    tools = tmp_path / "bin"
    tools.mkdir()
    executable(tools / "srun", SRUN.format(python=sys.executable))
    executable(tools / "scontrol", SCONTROL)
    (tmp_path / "slurm_work.py").write_text(WORK)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "PREFECT_", "PYTEST_", "SLURM_"))}
    folder = Path("/tmp") / f"pt-slurm-{os.getpid()}"  # short: sockets lie in it
    environment = kept | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "POSTTRAIN_ROOT": str(tmp_path),
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "POSTTRAIN_PYTHON": sys.executable,
        "POSTTRAIN_SLURM": str(FOLDER),
        "PLAYED": str(tmp_path / "played.txt"),
        "RAY_FOLDER": str(folder),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_CPUS_PER_TASK": "1",
        "OMP_NUM_THREADS": "1",
    }
    started = []

    def start(recipe):
        (tmp_path / "recipe.yaml").write_text(recipe)
        command = ["bash", str(SCRIPT), str(tmp_path / "recipe.yaml")]
        with (tmp_path / "output.txt").open("w") as output:
            how = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
            started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **how))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            mine = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in mine:
                if one.is_running():
                    one.send_signal(signal.SIGKILL)
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def of_job():
    """Processes of Ray that belong to the job of this test."""
    mark, pids = f"pt-slurm-{os.getpid()}", []
    for process in psutil.process_iter(["cmdline"]):
        if any(mark in word for word in process.info["cmdline"] or []):
            pids.append(process)
    return pids


@pytest.mark.slow
def test_a_recipe_runs_on_the_nodes_of_a_job(job, tmp_path):
    process = job(RECIPE)
    assert process.wait(550) == 0, (tmp_path / "output.txt").read_text()
    assert "Ray: 2 nodes, 2 cores, 0 GPUs" in (tmp_path / "output.txt").read_text()
    played = (tmp_path / "played.txt").read_text().splitlines()
    assert [re.search(r"--nodelist=(\S+)", line)[1] for line in played] == ["node0", "node1"]
    assert "--head" in played[0]
    assert re.search(r"--address=127\.0\.0\.1:\d+", played[1])
    made = Store(Layout(tmp_path)).manifests()
    assert {manifest.step for manifest in made} == {"a", "b"}
    assert not psutil.wait_procs(of_job(), timeout=60)[1]


@pytest.mark.slow
def test_a_job_that_must_end_leaves_a_run_that_can_be_resumed(job, tmp_path):
    process = job('name: long\nstages: {a: {kind: python, function: "slurm_work:long"}}\n')
    state = tmp_path / ".posttrain"

    def begun():
        return list(state.glob("work/*/tmp-*/outputs/result/n.txt"))

    while not begun():
        assert process.poll() is None, (tmp_path / "output.txt").read_text()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 130
    assert not psutil.wait_procs(of_job(), timeout=60)[1]


def test_the_scripts_are_sound():
    for file in (SCRIPT, FOLDER / "ray.sh"):
        subprocess.run(["bash", "-n", file], check=True)
    if shellcheck := shutil.which("shellcheck"):
        done = subprocess.run([shellcheck, "-x", SCRIPT, FOLDER / "ray.sh"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    text = SCRIPT.read_text() + (FOLDER / "ray.sh").read_text()
    assert "RAY_AUTH_MODE=token" in text
    code = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert not [line for line in code if re.search(r"\bray stop\b", line)]
