"""A gate that asks a person, on a real Prefect server and in a real browser."""

import json
import os
import re
import subprocess
import sys
import urllib.request

import pytest

from flows.servers.prefect_server import find_free_port, is_healthy, make_prefect_environment
from lineage.audit.approvals import read_decisions
from lineage.layout import Layout
from tests.flows.prefect_runs.browser import TIMEOUT, open_browser
from tests.small_steps import write_gated_recipe

pytestmark = pytest.mark.slow
LAB = """
def note(context):
    (context.output("result") / "n.txt").write_text("noted")
"""
RECIPE = write_gated_recipe(
    "min: 0.9, on_fail: approve",
    """\
  aside: {kind: python, function: "asking_lab:note", inputs: {model: base}}
  after: {kind: python, function: "asking_lab:note", inputs: {report: check}}
""",
)


@pytest.fixture
def server(tmp_path):
    """A Prefect server that belongs to no run: its address."""
    port, home = find_free_port(), Layout(tmp_path / "server")
    (home.state / "prefect").mkdir(parents=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    words = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *words],
            stdout=log,
            stderr=log,
            env=kept | make_prefect_environment(home) | {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"},
        )
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        process.wait(60)


def flow_runs(url):
    request = urllib.request.Request(f"{url}/api/flow_runs/filter", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def fill(page, decision, name, reason):
    """The form that opens at *Resume*, as a person fills it in."""
    form = page.locator(".p-modal")
    form.get_by_text("Your name").wait_for()
    form.locator(".p-select-button__control").focus()
    page.keyboard.press("ArrowDown")
    page.locator(".p-select-option", has_text=decision).click()
    form.locator("textarea").nth(0).fill(name)
    form.locator("textarea").nth(1).fill(reason)
    page.get_by_role("button", name="Submit").click()


def test_a_run_pauses_shows_its_evidence_and_resumes_when_the_form_is_sent(checkout, processes, server, tmp_path):
    opened = open_browser()
    made = checkout("asking", RECIPE, {"asking_lab": LAB})
    processes.wait_for(lambda: is_healthy(f"{server}/api"), TIMEOUT)
    process = made.start("run", made.recipe, PREFECT_API_URL=f"{server}/api", POSTTRAIN_USER="ada")

    def paused():
        assert process.poll() is None, made.output.read_text()
        return [run for run in flow_runs(server) if run["state"]["type"] == "PAUSED"]

    (run,) = processes.wait_for(paused, 2 * TIMEOUT)
    processes.wait_for(lambda: "aside: done" in made.output.read_text(), TIMEOUT)
    assert "after:" not in made.output.read_text()
    assert "check: waiting (decide in Prefect, or: posttrain approve" in made.output.read_text()
    with opened as page:
        page.goto(f"{server}/runs/flow-run/{run['id']}")
        page.get_by_role("button", name="Resume").first.click()
        evidence = page.get_by_role("link", name="The evidence").get_attribute("href")
        page.goto(server + evidence)
        for part in (
            "check: approve or reject",
            "Samples side by side",
            "Lineage",
            "accuracy of model 0.0000, wanted >= 0.9",
        ):
            page.get_by_text(part).first.wait_for()
        page.screenshot(path=tmp_path / "evidence.png")
        page.goto(f"{server}/runs/flow-run/{run['id']}")
        page.get_by_role("button", name="Resume").first.click()
        fill(page, "approve", "Grace", "only a rehearsal")
        made.finish(process)
        page.get_by_text("Completed").first.wait_for()
        page.screenshot(path=tmp_path / "completed.png")
    (file,) = (made.layout.state / "approvals").iterdir()
    (kept,) = read_decisions(made.layout, file.stem)
    assert (kept["decision"], kept["name"], kept["reason"], kept["via"]) == (
        "approve",
        "Grace (claimed in Prefect's form)",
        "only a rehearsal",
        "prefect",
    )
    assert re.search(r"after: done", made.output.read_text())
    # The same evaluation does not ask again.
    made.finish(made.start("run", made.recipe, PREFECT_API_URL=f"{server}/api"))
    assert "check: cached" in made.output.read_text()
