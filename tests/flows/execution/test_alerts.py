"""Messages about runs arrive at a webhook; one that fails does not disturb the run, and no address is printed."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from flows.execution.alerts import Alerts, send_message
from flows.execution.gates import GateState
from flows.execution.run_log import read_events
from flows.execution.states import StepState, describe_gate_ends
from flows.planning.recipe_plan import plan_recipe
from flows.runs.launch import run_plan
from lineage.layout import Layout
from schemas.errors import PlanError, RecipeError
from schemas.recipe.load import load_recipe

LAB = """
def number(context):
    (context.output("result") / "n.txt").write_text("1")

def broken(context):
    raise ValueError("no")
"""
RECIPE = """
name: watched
notify:
  - {to: "${env:HOOK}", on: [end, failed_gate]}
  - {to: "${env:OTHER_HOOK}", on: [waiting_approval, refused_promotion]}
stages:
  a: {kind: python, function: "alert_lab:number"}
"""


@pytest.fixture
def hook(monkeypatch):
    """A webhook: its address, and the messages that it received; `status` is what it answers."""
    made = SimpleNamespace(messages=[], status=200)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.messages.append((self.path, self.headers["Content-Type"], body))
            self.send_response(made.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        made.address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("HOOK", f"{made.address}/secret-token")
        monkeypatch.setenv("OTHER_HOOK", f"{made.address}/other")
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def plan(tmp_path, monkeypatch):
    (tmp_path / "alert_lab.py").write_text(LAB)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return plan_recipe(tmp_path / "recipe.yaml", Layout(tmp_path / "root"))


def test_the_end_of_a_run_is_sent_once_as_slack_wants_it(plan, hook, tmp_path):
    outcome = run_plan(plan, Layout(tmp_path / "root"), executor="inprocess", prefect=False)
    text = f"watched, run {outcome.run}: ended well"
    assert hook.messages == [("/secret-token", "application/json", {"text": text})]
    (sent,) = [event for event in read_events(Layout(tmp_path / "root"), outcome.run) if event["type"] == "alert"]
    assert (sent["to"], sent["on"], sent["error"]) == ("${env:HOOK}", "end", "")


def report(plan, layout, *events):
    with Alerts(plan, layout, "r1") as alerts:
        layout.run("r1").mkdir(parents=True, exist_ok=True)
        for event in events:
            alerts.report(event)
        alerts.refuse_promotion("champion of x unchanged: a gate failed")


def test_gates_and_promotions_go_to_the_webhooks_that_want_them(plan, hook, tmp_path):
    waiting = {"type": "step", "step": "check", "state": "waiting", "gates": "gate waits for approval: accuracy"}
    report(
        plan,
        Layout(tmp_path / "root"),
        {"type": "step", "step": "a", "state": "done"},
        waiting,
        {**waiting, "state": "done", "gates": "gate failed: accuracy; gate waits for approval: f1"},
        {"type": "step", "step": "late", "state": "cached", "gates": "gate warned: accuracy"},
        {"type": "run", "run": "r1", "state": "started"},
    )
    assert [(path, body["text"].partition(": ")[2]) for path, _, body in hook.messages] == [
        ("/other", "check waits for approval; posttrain approve r1 check"),
        ("/secret-token", "check: gate failed: accuracy"),
        ("/secret-token", "late: gate warned: accuracy"),
        ("/other", "champion of x unchanged: a gate failed"),
    ]


def test_a_rejected_gate_is_no_failed_one_and_says_by_whom_and_why(plan, tmp_path):
    """Also where the reason reads like the text of a gate."""
    why = "by ada at 2026-11-23T10:00:00+00:00: too slow; see samples; gate it"
    gates = (
        GateState(0, "f1", "failed", ""),
        GateState(1, "accuracy", "rejected", "", why),
        GateState(2, "length", "passed", ""),
    )
    silent, layout, emitted = plan.model_copy(update={"notify": ()}), Layout(tmp_path / "root"), []
    layout.run("r1").mkdir(parents=True)
    for kept in (gates, gates[1:]):
        with Alerts(silent, layout, "r1", lambda occasion, text: emitted.append((occasion, text)) or "") as alerts:
            alerts.report(StepState("check", "done", gates=kept).as_event())
            alerts.report({"type": "run", "run": "r1", "state": "ended", "exit_code": 2})
            ended = list(alerts.gates.values())
        assert describe_gate_ends(ended) == ("a gate failed" if kept is gates else "a gate was rejected")
    rejected = f"gate rejected: accuracy ({why})"
    assert emitted == [
        ("failed_gate", f"check: gate failed: f1; {rejected}"),
        ("failed_gate", f"check: {rejected}"),
    ]


@pytest.mark.parametrize(
    ("verdict", "message"),
    [("failed", "a gate failed"), ("rejected", "a gate was rejected"), ("waiting", "a gate waits for approval")],
)
def test_the_end_of_a_run_says_what_its_gates_did(plan, hook, tmp_path, verdict, message):
    gates = (GateState(0, "accuracy", verdict, "", "by ada: no" if verdict == "rejected" else ""),)
    layout = Layout(tmp_path / "root")
    layout.run("r1").mkdir(parents=True)
    with Alerts(plan, layout, "r1") as alerts:
        alerts.report(StepState("check", "done", gates=gates).as_event())
        alerts.report({"type": "run", "run": "r1", "state": "ended", "exit_code": 2})
    assert hook.messages[-1][2] == {"text": f"watched, run r1: {message}"}


@pytest.mark.parametrize(("status", "error"), [(404, "Not Found"), (500, "Internal Server Error")])
def test_a_webhook_that_fails_is_recorded_without_its_address(plan, hook, tmp_path, status, error):
    hook.status = status
    outcome = run_plan(plan, Layout(tmp_path / "root"), executor="inprocess", prefect=False)
    assert outcome.exit_code == 0
    (sent,) = [event for event in read_events(Layout(tmp_path / "root"), outcome.run) if event["type"] == "alert"]
    assert sent["error"] == f"${{env:HOOK}}: {error}"
    assert "secret-token" not in json.dumps(sent)


def test_a_webhook_that_is_not_there(monkeypatch):
    monkeypatch.setenv("HOOK", "http://127.0.0.1:9/secret-token")
    error = send_message("${env:HOOK}", "hello")
    assert error.startswith("${env:HOOK}: ")
    assert "secret-token" not in error


@pytest.mark.parametrize(
    ("value", "message"), [(None, "HOOK is not set"), ("ftp://127.0.0.1/x", "must begin with https:// or http://")]
)
def test_an_address_that_cannot_work_stops_the_run_before_it_begins(plan, hook, tmp_path, monkeypatch, value, message):
    monkeypatch.setenv("HOOK", value) if value else monkeypatch.delenv("HOOK")
    with pytest.raises(PlanError, match=message):
        run_plan(plan, Layout(tmp_path / "root"), executor="inprocess", prefect=False)
    assert not (tmp_path / "root" / ".posttrain" / "runs").exists()


@pytest.mark.parametrize("to", ["https://hooks.slack.com/services/T0/B0/secret", "prefect:secret", "${env:A-B}"])
def test_an_address_in_the_recipe_itself_is_refused(tmp_path, to):
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("${env:HOOK}", to))
    with pytest.raises(RecipeError, match=r"recipe.yaml:4:6: notify.0.to: the address of a webhook is a secret"):
        load_recipe(tmp_path / "recipe.yaml")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a module that Prefect imports
@pytest.mark.parametrize("kind", ["secret", "slack-webhook"])
def test_an_address_in_a_block_of_prefect(hook, monkeypatch, kind):
    from prefect.blocks.core import Block
    from prefect.blocks.notifications import SlackWebhook
    from prefect.blocks.system import Secret

    address = f"{hook.address}/block"
    blocks = {"secret/team": Secret(value=address), "slack-webhook/team": SlackWebhook(url=address)}
    monkeypatch.setattr(Block, "load", blocks.__getitem__)
    assert send_message(f"prefect:{kind}/team", "hello") == ""
    assert hook.messages == [("/block", "application/json", {"text": "hello"})]
    assert send_message("prefect:secret/other", "hello") == "prefect:secret/other: KeyError"


def test_occasions_become_events_of_prefect_also_without_a_webhook(plan, tmp_path):
    silent, layout, emitted = plan.model_copy(update={"notify": ()}), Layout(tmp_path / "root"), []
    layout.run("r1").mkdir(parents=True)

    def emit(occasion, text):
        emitted.append((occasion, text))
        return "the server is gone" if occasion == "failed_gate" else ""

    with Alerts(silent, layout, "r1", emit) as alerts:
        alerts.report({"type": "step", "step": "check", "state": "done", "gates": "gate failed: accuracy"})
        alerts.report({"type": "run", "run": "r1", "state": "ended", "exit_code": 2})
        alerts.refuse_promotion("champion of x unchanged")
    assert emitted == [
        ("failed_gate", "check: gate failed: accuracy"),
        ("refused_promotion", "champion of x unchanged"),
    ]
    assert [(event["to"], event["error"]) for event in read_events(layout, "r1")] == [
        ("events of Prefect", "the server is gone"),
        ("events of Prefect", ""),
    ]
