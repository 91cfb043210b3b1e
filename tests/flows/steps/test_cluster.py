"""RAY_ADDRESS: steps run on a cluster that was there before and is there afterwards."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from flows.steps.ray_workers import QUIET
from lineage.artifacts.store import Store

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
WORK = """
import os

def who(context, *, mark: int = 0):
    (context.output("result") / "n.txt").write_text(str(mark))
    return {"pid": os.getpid(), "raylet": os.getppid()}
"""
RECIPE = """
name: elsewhere
stages:
  a: {kind: python, function: {use: "cluster_work:who", mark: 1}}
  b: {kind: python, function: {use: "cluster_work:who", mark: 2}, inputs: {x: a}}
"""


@pytest.fixture
def cluster():
    """A Ray head on 127.0.0.1 with one core; its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | QUIET | TOKEN
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        head = subprocess.Popen(
            [
                Path(sys.executable).with_name("ray"),
                "start",
                "--head",
                "--block",
                "--num-cpus=1",
                f"--port={port}",
                "--node-ip-address=127.0.0.1",
                "--include-dashboard=false",
                f"--temp-dir={folder}",
                "--object-store-memory=100000000",
                "--disable-usage-stats",
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield f"127.0.0.1:{port}", head
        finally:
            members = psutil.Process(head.pid).children(recursive=True)
            head.send_signal(signal.SIGTERM)
            head.wait(30)
            psutil.wait_procs(members, timeout=20)


@pytest.mark.slow
def test_an_existing_cluster_is_used_and_left_alone(checkout, processes, cluster):
    address, head = cluster
    made = checkout("root", RECIPE, {"cluster_work": WORK})
    raylet = processes.wait_for(lambda: [p for p in processes.tree(head) if "raylet" in p.name()])[0]
    made.finish(made.start("run", made.recipe, RAY_ADDRESS=address, **TOKEN))
    metrics = [m.metrics for m in Store(made.layout).manifests()]
    assert {t["raylet"] for t in metrics} == {raylet.pid}
    assert len({t["pid"] for t in metrics}) == 2
    assert raylet.is_running()
    assert not (made.layout.state / "ray").exists()
    made.is_quiet()
    (made.layout.root / "cluster_work.py").write_text(WORK + "\nX = 1\n")
    made.recipe.write_text(
        RECIPE.replace("mark: 2}", "mark: 3}").replace("kind: python", "kind: python, resources: {num_cpus: 2}")
    )
    refused = made.start("run", made.recipe, RAY_ADDRESS=address, **TOKEN)
    assert refused.wait(60) == 3
    assert "b: no node has CPU 2" in made.output.read_text()
    assert "the largest node has CPU 1" in made.output.read_text()
    made.is_quiet()


@pytest.mark.slow
def test_another_version_of_ray_than_the_clusters_is_named(cluster):
    address, _ = cluster
    code = "from flows.steps.ray_workers import find_cluster_problems; print(find_cluster_problems())"
    for before, expected in (("", "[]"), ("import ray; ray.__version__ = '1.2.3';", "Version mismatch")):
        done = subprocess.run(
            [sys.executable, "-c", before + code],
            env=os.environ | QUIET | TOKEN | {"RAY_ADDRESS": address},
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        )
        assert expected in done.stdout, done.stdout + done.stderr
