"""Suspend and Resume of a deployment's run: its process ends and goes on from checkpoints; other runs are unharmed."""

import json
import urllib.request

import psutil
import pytest

from tests.flows.servers.test_kill_servers import RECIPE, TIMEOUT, WORK

SUSPENDED = {
    "type": "PAUSED",
    "name": "Suspended",
    "state_details": {"pause_reschedule": True, "pause_timeout": "2100-01-01T00:00:00Z"},
}


def ask(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_run_is_suspended_and_resumed_during_another_run(checkout, processes):
    made = checkout("root", RECIPE, {"served_work": WORK})
    (made.layout.root / "other.yaml").write_text(
        RECIPE.replace("name: plain", "name: other").replace("seed_value: 3", "seed_value: 4")
    )
    up, output = made.start("up", "--prefect-port", 0, "--mlflow-port", 0), made.output
    processes.wait_for(lambda: up.poll() is not None or "Ctrl-C stops everything" in output.read_text(), TIMEOUT)
    api = json.loads((made.layout.state / "up.json").read_text())["prefect"]
    assert made.start("deploy", made.recipe, made.layout.root / "other.yaml").wait(TIMEOUT) == 0

    def begin(name):
        (deployment,) = ask(f"{api}/deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        return ask(f"{api}/deployments/{deployment['id']}/create_flow_run", {})["id"]

    def read(run):
        (flow_run,) = ask(f"{api}/flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return flow_run

    def has_step(run, state):
        steps = ask(f"{api}/task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return any(step["name"] == "b" and step["state_name"] == state for step in steps)

    def suspend(run):
        return ask(f"{api}/flow_runs/{run}/set_state", {"state": SUSPENDED})["status"]

    run, other = begin("plain"), begin("other")
    processes.wait_for(lambda: has_step(run, "Running"), TIMEOUT)
    process = int(read(run)["infrastructure_pid"].rpartition(":")[2])
    assert suspend(run) == "ACCEPT"
    processes.wait_for(lambda: not psutil.pid_exists(process), TIMEOUT)
    processes.wait_for(lambda: has_step(run, "Cancelled"), TIMEOUT)
    assert read(run)["state_name"] == "Suspended"
    assert ask(f"{api}/flow_runs/{run}/resume", {})["status"] == "ACCEPT"
    processes.wait_for(lambda: has_step(run, "Running"), TIMEOUT)
    assert suspend(run) == "ACCEPT"
    assert ask(f"{api}/flow_runs/{run}/resume", {})["status"] == "ACCEPT"  # its process has not noticed yet
    final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    ends = processes.wait_for(
        lambda: (
            [read(one)["state_type"] for one in (run, other)]
            if all(read(one)["state_type"] in final for one in (run, other))
            else None
        ),
        TIMEOUT,
    )
    assert ends == ["COMPLETED", "COMPLETED"]
    assert "worker: " not in output.read_text()  # it did not die
    up.terminate()
    assert up.wait(120) == 0
    made.is_quiet(60)
