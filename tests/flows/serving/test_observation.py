"""What an operator sees of the endpoint: counters, a log without contents, and a health check that can fail."""

import json
import threading
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from flows.serving import current as current_module
from flows.serving.app import make_app
from flows.serving.current import Current, Limits
from flows.serving.rules import Rules
from schemas.errors import PlanError
from tests.waiting import wait_for


@pytest.fixture
def current():
    """A model whose engine thread lives until a test ends it."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    worker = SimpleNamespace(thread=thread, max_length=64, close=over.set)
    chosen = SimpleNamespace(digest="ab" * 32, alias="mlflow:tiny@champion", description="tiny")
    served = SimpleNamespace(worker=worker, chosen=chosen, name="tiny", since=1700000000, card=lambda: {"id": "tiny"})
    made = Current(served)
    yield made
    made.close()
    thread.join()


def client_of(current, **options):
    return TestClient(make_app(current, **options), base_url="http://127.0.0.1:8000")


def read_metrics(client, **options):
    text = client.get("/metrics", **options).text
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_route_and_status_also_refused_ones(current):
    client = client_of(current)
    client.get("/v1/models")
    client.get("/v1/models")
    client.get("/v1/models/../secret-path")
    client.get("/whatever")
    client.post("/v1/completions", content="{}")  # no content type
    metrics = read_metrics(client)

    def count(method, path, status):
        labels = (("method", method), ("path", path), ("status", status))
        return metrics.get(("posttrain_serve_requests_total", *labels), 0)

    assert count("GET", "/v1/models", "200") == 2
    assert count("GET", "other", "404") == 2
    assert count("POST", "/v1/completions", "415") == 1
    assert metrics[("posttrain_serve_request_seconds_count", ("path", "other"))] == 2
    assert metrics[("posttrain_serve_active_requests",)] == 1  # this one
    assert metrics[("posttrain_serve_healthy",)] == 1
    assert metrics[("posttrain_serve_model_since_seconds", ("digest", "ab" * 32), ("name", "tiny"))] == 1700000000
    assert "secret-path" not in str(metrics)


def test_metrics_need_the_token_and_health_does_not(current):
    client = client_of(current, rules=Rules(token="abc"))
    assert client.get("/metrics").status_code == 401
    assert client.get("/health").status_code == 200
    metrics = read_metrics(client, headers={"Authorization": "Bearer abc"})
    assert metrics[("posttrain_serve_requests_total", ("method", "GET"), ("path", "/metrics"), ("status", "401"))] == 1


def test_the_log_has_a_line_per_request_without_its_content(current, tmp_path):
    client = client_of(current, log=tmp_path / "requests.jsonl")
    client.get("/v1/models")
    client.post("/v1/chat/completions", json={"model": "other", "messages": [{"role": "user", "content": "my secret"}]})
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert [(line["method"], line["path"], line["status"], line["model"]) for line in lines] == [
        ("GET", "/v1/models", 200, "tiny"),
        ("POST", "/v1/chat/completions", 404, "tiny"),
    ]
    assert "my secret" not in (tmp_path / "requests.jsonl").read_text()


def test_a_log_that_cannot_be_written_is_refused(current, tmp_path):
    with pytest.raises(PlanError, match=r"--request-log .* cannot be written: No such file"):
        make_app(current, log=tmp_path / "missing" / "requests.jsonl")


def test_health_fails_while_the_champion_cannot_be_followed(current, monkeypatch):
    answers = {"error": OSError("the audit log is gone")}

    def read_standing(*_):
        if answers["error"]:
            raise answers["error"]
        return SimpleNamespace(champion=SimpleNamespace(digest="ab" * 32), alarms=[], name="tiny")

    monkeypatch.setattr(current_module, "LOOK", 0.001)
    monkeypatch.setattr(current_module, "read_standing", read_standing)
    client = client_of(current)
    assert client.get("/health").json() == {"status": "ok"}
    messages = []
    current.follow(None, Limits(1, None), "cpu", "float32", messages.append)
    wait_for(lambda: client.get("/health").status_code == 503)
    assert "cannot be followed" in client.get("/health").json()["reason"]
    assert "audit log" not in client.get("/health").text
    assert read_metrics(client)[("posttrain_serve_healthy",)] == 0
    assert messages == ["still serving tiny: the audit log is gone"]
    answers["error"] = None
    wait_for(lambda: client.get("/health").status_code == 200)
    current.ending.set()
    current.watch.join(60)


def test_health_fails_when_the_engine_has_ended(current):
    client = client_of(current)
    current.close()
    current.served.worker.thread.join(60)
    assert client.get("/health").status_code == 503
    assert client.get("/health").json() == {"status": "failing", "reason": "the engine has ended"}
