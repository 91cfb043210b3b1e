"""Scheduled garbage collection: lists first, removes on request, and never what is needed."""

import contextlib
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.deployments import clearing
from flows.execution.active_runs import mark_active
from flows.history.garbage import Policy
from lineage.retention.pins import pin_artifacts
from schemas.errors import PlanError
from schemas.schedule import Schedule
from tests.flows.history.test_keeping import checkout, here, run

__all__ = ["checkout"]


@pytest.fixture
def logged(monkeypatch):
    lines = []
    logger = SimpleNamespace(info=lines.append, error=lines.append)
    monkeypatch.setattr(clearing, "get_run_logger", lambda: logger)
    monkeypatch.setattr(clearing, "create_markdown_artifact", lambda **content: lines.append(content["markdown"]))
    return lines


def test_a_scheduled_run_lists_first_and_keeps_pins_and_active_runs(checkout, logged):
    keys = {value: run(checkout, value) for value in range(1, 5)}
    pin_artifacts(checkout, [keys[1]["second"]], "second")
    with mark_active(checkout, "run-2"):
        listed = clearing.gc.fn(last=1)
        assert len(here(checkout)) == 8
        assert "would free" in listed.message
        done = clearing.gc.fn(last=1, remove=True)
    assert done.is_completed()
    assert "freed" in done.message
    assert done.message.startswith("removed: 2 artifacts")
    assert here(checkout) == {key for value in (1, 2, 4) for key in keys[value].values()}
    (checkout.state / "audit.jsonl").write_text("damaged\n")
    failed = clearing.gc.fn(last=0, remove=True)
    assert failed.is_failed()
    assert "nothing is removed" in failed.message
    assert len(here(checkout)) == 6


def test_the_deployment_has_the_policy_and_only_lists_unless_asked(checkout, monkeypatch):
    made, deleted = [], []
    client = SimpleNamespace(
        create_flow_from_name=lambda name: name,
        create_deployment=lambda **content: made.append(content),
        read_deployments=lambda **_: [SimpleNamespace(id=1, flow_id=clearing.NAME), SimpleNamespace(id=2, flow_id="x")],
        delete_deployment=deleted.append,
    )
    monkeypatch.setattr(clearing, "get_client", lambda **_: contextlib.nullcontext(client))
    monkeypatch.setattr(clearing, "ensure_pool", lambda name: None)
    line = clearing.put_schedule(checkout, Schedule(cron="0 4 * * 0"), Policy(5, 2, "score"), remove=False)
    assert "lists what it would remove" in line
    assert made[0]["parameters"] == {"last": 5, "keep": 2, "by": "score", "champions": None, "remove": False}
    assert made[0]["job_variables"]["env"]["POSTTRAIN_ROOT"] == str(checkout.root)
    assert set(made[0]["parameter_openapi_schema"]["properties"]) == {"last", "keep", "by", "champions", "remove"}
    assert "removed" in clearing.put_schedule(checkout, None, Policy(5), remove=False)
    assert deleted == [1]
    refused = CliRunner().invoke(app, ["gc", "--schedule", "soon"])
    assert isinstance(refused.exception, PlanError)
    assert "write a cron expression" in str(refused.exception)
