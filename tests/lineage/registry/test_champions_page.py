"""Champions where MLflow is a server: moved over HTTP, and seen in its pages in a real browser."""

import os
import socket
import subprocess
import sys
import urllib.request

import pytest

from lineage.registry.champions import find_champion, move_champion, read_standing
from lineage.registry.rollback import roll_back
from lineage.tracking.record import project_run
from tests.flows.prefect_runs.browser import open_browser
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of MLflow's own dependencies
]
STATES = {name: {"state": "done"} for name in ("base", "lessons", "lessons_clean", "tuned", "raw")}


@pytest.fixture
def address(tmp_path):
    """A server of MLflow on a store of its own, as `posttrain up` starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{tmp_path / 'served.db'}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ARTIFACTS_DESTINATION": str(tmp_path / "served"),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "DO_NOT_TRACK": "1",
    }
    log = (tmp_path / "server.log").open("w")
    words = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *words], env=os.environ | settings, stdout=log, stderr=log
    )
    url = f"http://127.0.0.1:{port}"
    read_log = (tmp_path / "server.log").read_text
    wait_for(lambda: answers(url), 240, alive=lambda: server.poll() is None, said=read_log)
    yield url
    server.terminate()
    server.wait(60)
    log.close()


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def page():
    """A page of a real browser."""
    with open_browser() as opened:
        opened.set_viewport_size({"width": 1400, "height": 900})
        yield opened


def test_the_page_of_a_registered_model_shows_its_champion(small_run, address, page, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    layout, made = small_run.layout, small_run.made
    project_run(layout, "run-1", small_run.plan(), STATES)
    evidence = {"gate": "exam", "key": "ab" * 32, "run": "run-1", "recipe": "small", "gates": ["accuracy 0.9"]}
    first = move_champion(layout, "chat", made["tuned"].key, evidence=evidence, expected=None)
    second = move_champion(layout, "chat", made["raw"].key, evidence=evidence, expected=first)
    assert find_champion(layout, "chat") == second
    assert not (layout.state / "mlflow.db").exists()  # all of it went to the server

    def champions_row():
        page.goto(f"{address}/#/models/chat")
        page.get_by_text("Version 2", exact=True).wait_for(timeout=120_000)
        row = page.locator("tr, [role=row]").filter(has_text="champion")
        row.first.wait_for(timeout=120_000)
        return row.first.inner_text()

    assert "Version 2" in champions_row()
    page.screenshot(path=str(tmp_path / "second.png"), full_page=True)
    roll_back(layout, "chat")
    page.reload()
    assert "Version 1" in champions_row()
    page.screenshot(path=str(tmp_path / "first.png"), full_page=True)
    page.goto(f"{address}/#/models/chat/versions/1")
    for word in ("champion again since", "posttrain.move.000001", made["tuned"].key):
        page.get_by_text(word).first.wait_for(timeout=120_000)
    page.screenshot(path=str(tmp_path / "version.png"), full_page=True)
    assert [m.action for m in read_standing(layout, "chat").moves] == ["promote", "promote", "rollback"]
