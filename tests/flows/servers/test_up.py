"""`posttrain up`: real servers, a real worker; what is wrong is said before anything starts."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import urllib.request

import psutil
import pytest
from rich.console import Console

from flows.servers.up import read_addresses, run_services
from lineage.layout import Layout
from schemas.errors import PlanError
from tests.small_steps import NUMBER

RECIPE = """
name: beside
stages:
  a: {kind: python, function: {use: "beside_work:number", value: 3}}
"""
PORTS = ("--prefect-port", 0, "--mlflow-port", 0)


def started(layout, **options):
    return run_services(
        layout, Console(quiet=True), **{"prefect_port": 0, "mlflow_port": 0, "database": None, "limit": 1} | options
    )


@pytest.fixture
def layout(tmp_path, monkeypatch):
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "POSTTRAIN_DATABASE"):
        monkeypatch.delenv(name, raising=False)
    return Layout(tmp_path)


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_a_port_that_is_taken_is_named_with_its_option(layout, server):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            PlanError, match=f"port {port} of 127.0.0.1.*is taken.*--{server}-port \\(0: any free one\\)"
        ):
            started(layout, **{f"{server}_port": port})
    assert list(layout.state.glob("up/*")) == [layout.state / "up" / "lock"]


@pytest.mark.parametrize("variable", ["PREFECT_API_URL", "MLFLOW_TRACKING_URI"])
def test_a_server_that_was_named_must_answer(layout, monkeypatch, variable):
    monkeypatch.setenv(variable, "http://127.0.0.1:9/api")
    with pytest.raises(PlanError, match=f"at http://127.0.0.1:9/api \\({variable}\\) does not answer"):
        started(layout)


def test_a_second_up_says_where_the_first_is(layout):
    (layout.state / "up").mkdir(parents=True)
    addresses = {"prefect": "http://127.0.0.1:4711/api", "mlflow": "http://127.0.0.1:4712", "pids": {"up": 99}}
    (layout.state / "up.json").write_text(json.dumps(addresses))
    assert read_addresses(layout) == {}  # what a killed one left
    with (layout.state / "up" / "lock").open("ab") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        assert read_addresses(layout) == addresses
        with pytest.raises(
            PlanError, match=r"already: prefect at http://127.0.0.1:4711/api, mlflow at .*4712\n.*kill 99"
        ):
            started(layout)


def test_a_password_on_the_command_line_is_refused(layout):
    with pytest.raises(PlanError, match=r"postgresql://u@h/n: all users.*\n.*PGPASSWORD.*POSTTRAIN_DATABASE") as error:
        started(layout, database="postgresql://u:hidden@h/n")
    assert "hidden" not in str(error.value)
    assert not (layout.state / "database").exists()


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def told(made):
    return json.loads((made.layout.state / "up.json").read_text())


def begun(made, processes, *words, **environment):
    """An `up` that has said that it is ready, and its output."""
    process = made.start("up", *PORTS, *words, **environment)
    output = made.output
    processes.wait_for(lambda: process.poll() is not None or "Ctrl-C stops everything" in output.read_text(), 240)
    assert process.poll() is None, output.read_text()
    return process, output


@pytest.mark.slow
def test_up_serves_survives_kills_and_ends_cleanly(checkout, processes):
    made = checkout("root", RECIPE, {"beside_work": NUMBER})
    process, output = begun(made, processes)
    at = told(made)
    assert "Prefect" in get(at["prefect"].removesuffix("/api"))
    assert "<title>MLflow</title>" in get(at["mlflow"])
    assert f"Prefect  {at['prefect'].removesuffix('/api')}" in output.read_text()
    assert f"MLflow   {at['mlflow']}" in output.read_text()
    listening = {
        c.laddr.ip for p in processes.tree(process) for c in p.net_connections() if c.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    second = made.start("up", *PORTS)
    assert second.wait(60) == 3
    assert f"prefect at {at['prefect']}, mlflow at {at['mlflow']}" in made.output.read_text()
    # A run beside it is shown by its server, which stays; MLflow's server shows it too.
    made.finish(made.start("run", made.recipe))
    assert len(processes.tree(process)) >= 5
    flow_runs = post(f"{at['prefect']}/flow_runs/filter", {})
    assert [run["state_type"] for run in flow_runs] == ["COMPLETED"]
    shown = post(f"{at['mlflow']}/api/2.0/mlflow/experiments/search", {"max_results": 10})
    assert "beside" in [experiment["name"] for experiment in shown["experiments"]]
    for name in ("prefect", "mlflow", "worker"):
        before = told(made)["pids"][name]
        os.kill(before, signal.SIGKILL)
        processes.wait_for(lambda name=name: f"{name}: answers again" in output.read_text())
        assert f"{name}: was killed by signal 9; restarting in 1 s" in output.read_text()
        assert told(made)["pids"][name] != before
        assert {k: v for k, v in told(made).items() if k != "pids"} == {k: v for k, v in at.items() if k != "pids"}
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 0
    assert made.processes() == []
    assert "stopped" in output.read_text()
    assert made.leftovers() == []
    assert not (made.layout.state / "up.json").exists()


@pytest.mark.slow
def test_killed_up_leaves_no_orphans_and_the_next_takes_over(checkout, processes):
    made = checkout("root", RECIPE, {"beside_work": NUMBER})
    process, _ = begun(made, processes)
    process.kill()
    process.wait()
    made.is_quiet(60)
    assert not (made.layout.state / "up.json").exists()
    process, _ = begun(made, processes)
    process.terminate()
    assert process.wait(60) == 0
    made.is_quiet()


@pytest.mark.slow
def test_up_starts_again_on_the_same_ports_after_a_kill_of_all_its_own_processes(checkout, processes):
    made = checkout("root", RECIPE, {"beside_work": NUMBER})
    process, _ = begun(made, processes)
    at = told(made)
    ports = [at[name].removesuffix("/api").rpartition(":")[2] for name in ("prefect", "mlflow")]
    stranger = made.start("-c", "import time; time.sleep(600)", program=())
    own = [process.pid, *(p.pid for p in psutil.Process(process.pid).children())]  # the front and its keeper
    guard = next(p for p in processes.tree(process) if "orphans.py" in " ".join(p.cmdline()))
    for pid in (guard.pid, *own):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    again = made.start("up", "--prefect-port", ports[0], "--mlflow-port", ports[1])
    output = made.output
    processes.wait_for(lambda: again.poll() is not None or "Ctrl-C stops everything" in output.read_text(), 240)
    assert again.poll() is None, output.read_text()
    assert "processes that a killed `posttrain up` had left" in output.read_text()
    assert stranger.poll() is None
    stranger.kill()
    again.terminate()
    assert again.wait(60) == 0
    made.is_quiet()


@pytest.mark.slow
def test_servers_that_are_there_are_used_and_left_running(checkout, processes):
    owner = checkout("owner", RECIPE, {"beside_work": NUMBER})
    first, _ = begun(owner, processes)
    at = told(owner)
    guest = checkout("guest", RECIPE, {"beside_work": NUMBER})
    given = {"PREFECT_API_URL": at["prefect"], "MLFLOW_TRACKING_URI": at["mlflow"]}
    second, output = begun(guest, processes, **given)
    assert output.read_text().count("(not managed here)") == 2
    assert set(told(guest)["pids"]) & {"prefect", "mlflow"} == set()
    guest.finish(guest.start("run", guest.recipe, MLFLOW_TRACKING_URI=at["mlflow"]))  # finds Prefect by itself
    assert len(post(f"{at['prefect']}/flow_runs/filter", {})) == 1
    assert not (guest.layout.state / "mlflow.db").exists()
    second.terminate()
    assert second.wait(60) == 0
    guest.is_quiet()
    assert get(f"{at['prefect']}/health") == "true"
    first.terminate()
    assert first.wait(60) == 0


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with contextlib.closing(urllib.request.urlopen(request, timeout=20)) as answer:
        return json.loads(answer.read())
