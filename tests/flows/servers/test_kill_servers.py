"""kill -9 of a server in the middle of a run: nothing finished is lost, what is lost is said, the digests are right."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
TIMEOUT = 900
"""Seconds after which something hangs; a busy machine is slow."""
WORK = '''
import time

def sums(context, *, rounds: int = 40, seed_value: int = 1):
    """Sums with a checkpoint per round."""
    state = context.checkpoints / "state.txt"
    i, total = map(int, state.read_text().split()) if state.exists() else (0, seed_value)
    for i in range(i, rounds):
        total = total * 31 % 1000003 + i
        new = context.checkpoints / "state.tmp"
        new.write_text(f"{i + 1} {total}")
        new.replace(state)
        context.progress(i + 1, rounds)
        time.sleep(0.02)
    (context.output("result") / "n.txt").write_text(str(total))
    return {"total": total}
'''
RECIPE = """
name: plain
stages:
  a: {kind: python, function: {use: "served_work:sums", seed_value: 3}}
  b: {kind: python, function: {use: "served_work:sums", rounds: 500}, inputs: {x: a}}
  c: {kind: python, function: {use: "served_work:sums", rounds: 30}, inputs: {x: b}}
"""
ROUNDS = {"a": (3, 40), "b": (1, 500), "c": (1, 30)}


def sums(total, rounds):
    for i in range(rounds):
        total = total * 31 % 1000003 + i
    return str(total)


def is_right(made):
    """Whether every step is there, verifies, and holds what an undisturbed run writes, to the byte."""
    made.digests()
    digests = {}
    for manifest in made.layout.state.glob("artifacts/*/manifest.json"):
        (output,) = json.loads(manifest.read_text())["outputs"].values()
        (file,) = output["files"]
        digests[json.loads(manifest.read_text())["step"]] = file["sha256"]
    wanted = {step: hashlib.sha256(sums(*of).encode()).hexdigest() for step, of in ROUNDS.items()}
    return digests == wanted


def rounds_done(made):
    """Of the step that has got farthest among those that are not finished."""
    rounds = [0]
    for state in made.layout.state.glob("work/*/checkpoints/state.txt"):
        with contextlib.suppress(FileNotFoundError):
            rounds.append(int(state.read_text().split()[0]))
    return max(rounds)


@pytest.fixture
def begun(checkout, processes):
    """A checkout, and a run of it that is in the middle of step b."""

    def begin(name="root", **environment):
        made = checkout(name, RECIPE, {"served_work": WORK})
        run = made.start("run", made.recipe, **environment)
        in_the_middle(made, processes, run)
        return made, run

    return begin


def in_the_middle(made, processes, process):
    processes.wait_for(lambda: process.poll() is not None or rounds_done(made) > 60, TIMEOUT)
    assert process.poll() is None, made.output.read_text()


def victim(made, *words):
    """The process of the checkout whose name or command holds all the words."""
    hosts = "flows.servers.prefect_host"
    candidates = [[p, p.name(), *p.cmdline()] for p in made.processes() if hosts not in p.cmdline()]
    return next(words_of[0] for words_of in candidates if all(word in words_of[1:] for word in words))


def test_prefects_server_of_a_run(begun):
    made, run = begun()
    victim(made, "flows.servers.prefect_main", "server").kill()
    assert run.wait(TIMEOUT) == 0, made.output.read_text()
    assert "Prefect's server died during this run" in made.output.read_text()
    assert is_right(made)
    made.is_quiet(60)
    assert made.leftovers() == []


def test_prefect_gone_for_good(begun):
    made, run = begun(PREFECT_CLIENT_MAX_RETRIES="1")
    next(p for p in made.processes() if "flows.servers.prefect_host" in p.cmdline()).kill()  # its server dies with it
    assert run.wait(TIMEOUT) == 0, made.output.read_text()
    assert "Prefect's server no longer answers" in made.output.read_text()
    assert "the run continues without it" in made.output.read_text()
    assert is_right(made)
    made.is_quiet(60)


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_ray(begun, name):
    made, run = begun()
    victim(made, name).kill()
    assert run.wait(TIMEOUT) == 1, made.output.read_text()
    output = made.output.read_text()
    assert f"Ray died ({name}: killed, or out of memory)" in output
    assert "finished artifacts are kept; continue with: posttrain resume" in output
    made.is_quiet(60)
    assert rounds_done(made) > 60
    again = made.go_on("ray")
    assert again.wait(TIMEOUT) == 0, made.output.read_text()
    assert "a: cached" in made.output.read_text()
    assert is_right(made)
    made.is_quiet(60)
    assert made.leftovers() == []


def test_the_process_of_a_step(begun):
    made, run = begun()
    victim(made, "ray::b").kill()
    assert run.wait(TIMEOUT) == 1, made.output.read_text()
    assert "b: failed (its worker process died (killed, or out of memory)" in made.output.read_text()
    made.is_quiet(60)
    again = made.go_on("ray")
    assert again.wait(TIMEOUT) == 0, made.output.read_text()
    assert is_right(made)


@pytest.fixture
def mlflow_server(tmp_path, processes):
    """An MLflow server of somebody else; a function that starts it again, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--backend-store-uri", f"sqlite:///{tmp_path}/theirs.db", "--port", str(port), "--workers", "1"]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    started = []

    def start():
        with (tmp_path / "theirs.log").open("ab") as log:
            command = [sys.executable, "-m", "mlflow", "server", *words]
            process = subprocess.Popen(
                command, env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        processes.wait_for(lambda: process.poll() is not None or healthy(port), TIMEOUT)
        return process

    yield start, f"http://127.0.0.1:{port}"
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def healthy(port):
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        return answer.status == 200
    return False


def test_mlflow(begun, mlflow_server):
    start, url = mlflow_server
    server = start()
    made, run = begun(MLFLOW_TRACKING_URI=url)
    os.killpg(server.pid, signal.SIGKILL)
    assert run.wait(TIMEOUT) == 0, made.output.read_text()
    assert "MLflow was not updated" in made.output.read_text()
    assert is_right(made)
    made.is_quiet(60)
    start()
    made.recipe.write_text(RECIPE.replace("rounds: 30", "rounds: 31"))
    again = made.start("run", made.recipe, MLFLOW_TRACKING_URI=url)
    assert again.wait(TIMEOUT) == 0, made.output.read_text()
    body = json.dumps({"experiment_ids": ["1"], "max_results": 100}).encode()
    asked = urllib.request.Request(f"{url}/api/2.0/mlflow/runs/search", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        names = sorted(run_record["info"]["run_name"] for run_record in json.loads(answer.read())["runs"])
    runs = sorted(path.parent.name for path in made.layout.state.glob("runs/*/plan.json"))
    assert names == sorted([*runs, *"abc", *"abc"])  # the run that it missed is told with the next


def ask(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except OSError:
        return None  # it is being started again


@pytest.mark.parametrize("name", ["worker", "prefect"])
def test_the_runner_and_the_server_under_a_deployment(checkout, processes, name):
    made = checkout("root", RECIPE, {"served_work": WORK})
    up, output = made.start("up", "--prefect-port", 0, "--mlflow-port", 0), made.output
    processes.wait_for(lambda: up.poll() is not None or "Ctrl-C stops everything" in output.read_text(), TIMEOUT)
    record = json.loads((made.layout.state / "up.json").read_text())
    api = record["prefect"]
    assert made.start("deploy", made.recipe).wait(TIMEOUT) == 0, made.output.read_text()
    (deployment,) = ask(f"{api}/deployments/filter", {})
    flow_run = ask(f"{api}/deployments/{deployment['id']}/create_flow_run", {})["id"]
    in_the_middle(made, processes, up)
    os.kill(record["pids"][name], signal.SIGKILL)

    def state():
        (flow_run_record,) = ask(f"{api}/flow_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}}) or [{}]
        return (
            flow_run_record.get("state_type")
            if flow_run_record.get("state_type") in ("COMPLETED", "FAILED", "CRASHED")
            else None
        )

    assert processes.wait_for(state, TIMEOUT) == "COMPLETED"
    assert is_right(made)
    processes.wait_for(lambda: f"{name}: answers again" in output.read_text(), TIMEOUT)
    assert f"{name}: was killed by signal 9" in output.read_text()
    if name == "worker":
        assert "1 of its flow runs continue without it" in output.read_text()
    os.killpg(up.pid, signal.SIGINT)
    assert up.wait(120) == 0
    made.is_quiet(60)


def test_stopping_up_during_a_deployment_run_leaves_a_resumable_run(checkout, processes):
    made = checkout("root", RECIPE, {"served_work": WORK})
    up, output = made.start("up", "--prefect-port", 0, "--mlflow-port", 0), made.output
    processes.wait_for(lambda: up.poll() is not None or "Ctrl-C stops everything" in output.read_text(), TIMEOUT)
    api = json.loads((made.layout.state / "up.json").read_text())["prefect"]
    assert made.start("deploy", made.recipe).wait(TIMEOUT) == 0, made.output.read_text()
    (deployment,) = ask(f"{api}/deployments/filter", {})
    ask(f"{api}/deployments/{deployment['id']}/create_flow_run", {})
    in_the_middle(made, processes, up)
    os.killpg(up.pid, signal.SIGINT)
    assert up.wait(120) == 0, output.read_text()
    made.is_quiet(60)
    assert rounds_done(made) > 60
    again = made.go_on("ray")
    assert again.wait(TIMEOUT) == 0, made.output.read_text()
    assert "a: cached" in made.output.read_text()
    assert is_right(made)
