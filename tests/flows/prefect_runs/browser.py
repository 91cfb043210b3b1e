"""A real browser on a real `posttrain up`: what the tests of the pages share."""

import contextlib
import json
import os
import shutil
import signal
import urllib.error
import urllib.request

import pytest

from tests.waiting import wait_for

CHROMIUM = "/usr/bin/chromium"
TIMEOUT = 600.0
"""Seconds for anything that a loaded machine does."""


def open_browser():
    """Headless Chromium, or a skipped test that says what to install."""
    if not os.path.exists(CHROMIUM) and not shutil.which("chromium"):  # noqa: PTH110
        pytest.skip("no Chromium: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    return _browser(sync_api)


@contextlib.contextmanager
def _browser(sync_api):
    with sync_api.sync_playwright() as playwright:
        path = CHROMIUM if os.path.exists(CHROMIUM) else shutil.which("chromium")  # noqa: PTH110
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(TIMEOUT * 1000)
        yield page
        chromium.close()


class Served:
    """`posttrain up` of a checkout, its API, and waiting for what it says."""

    def __init__(self, checkout):
        self.checkout = checkout
        self.process = checkout.start("up", "--prefect-port", "0", "--mlflow-port", "0")
        self.output = checkout.output
        addresses = self.until(self._addresses)
        self.api, self.mlflow = addresses["prefect"], addresses["mlflow"]
        self.until(lambda: "Ctrl-C stops everything" in self.output.read_text())

    def _addresses(self):
        assert self.process.poll() is None, self.output.read_text()
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.checkout.layout.state / "up.json").read_text())
        return None

    def ask(self, path, body=None):
        request = urllib.request.Request(
            f"{self.api}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return {"refused": error.code, "detail": error.read().decode()}

    def until(self, condition, seconds=TIMEOUT):
        return wait_for(condition, seconds)

    def deployment(self, name):
        return self.ask(f"/deployments/name/{name}/{name}")

    def start(self, name, **parameters):
        body = {"parameters": parameters}
        return self.ask(f"/deployments/{self.deployment(name)['id']}/create_flow_run", body)

    def runs_of(self, name):
        return self.ask("/flow_runs/filter", {"deployments": {"id": {"any_": [self.deployment(name)["id"]]}}})

    def tasks(self, flow_run, attempt=None):
        task_runs = self.ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})
        kept = [t for t in task_runs if attempt is None or t["flow_run_run_count"] == attempt]
        return {t["name"]: t["state_name"] for t in kept}

    def artifacts(self, flow_run):
        return self.ask(
            "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_run]}}, "sort": "CREATED_DESC"}
        )

    def logs(self, flow_run):
        body = {"logs": {"flow_run_id": {"any_": [flow_run]}}, "limit": 200}
        return [line["message"] for line in self.ask("/logs/filter", body)]

    def ended(self, flow_run):
        final = self.until(lambda: _final(self.ask(f"/flow_runs/{flow_run}")))
        assert final["state_type"] != "CRASHED", (final["state"], self.logs(flow_run))
        return final

    def set_state(self, flow_run, kind, name):
        return self.ask(f"/flow_runs/{flow_run}/set_state", {"state": {"type": kind, "name": name}})["status"]

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)


def _final(flow_run):
    return flow_run if flow_run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None
