"""A canary with real processes: `posttrain serve` beside a registry, clients over HTTP, a promotion or its refusal."""

import json
import re
import signal
import urllib.error
import urllib.request

import pytest

from lineage.artifacts.store import Store
from lineage.audit.log import read_entries
from lineage.registry.champions import find_champion, read_standing
from tests.small_steps import TINY_DEFAULTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of MLflow's own dependencies
]
GATE = "gate: [{metric: accuracy, model: one, min: 0.0}, {metric: accuracy, model: two, min: 0.0}]"
RECIPE = (
    """\
name: small
seed: 3
promote: {model: one, gate: exam, name: chat}
"""
    + TINY_DEFAULTS
    + f"""\
stages:
  one: {{kind: init}}
  two: {{kind: init, seed: 4}}
  exam:
    kind: evaluate
    models: {{one: one, two: two}}
    tasks: [{{use: reasoning_gym, family: chain_sum, split: test, size: 4, style: short}}]
    max_completion_length: 4
    num_bootstrap: 100
    {GATE}
  strict:
    kind: evaluate
    models: {{one: one, two: two}}
    tasks: [{{use: reasoning_gym, family: chain_sum, split: test, size: 4, style: short, seed: 2}}]
    max_completion_length: 4
    num_bootstrap: 100
    gate: [{{metric: accuracy, model: two, min: 1.0, on_fail: warn}}]
"""
)
CANARY = ("serve", "mlflow:chat@champion", "--canary", "50%", "--challenger", "two", "--min-samples", "20")
SERVE = (*CANARY, "--port", "0", "--max-slots", "4")


class Endpoint:
    """A `posttrain serve` with a canary, and its clients."""

    def __init__(self, made, processes, *more):
        self.process, self.wait_for = made.start(*SERVE, *more), processes.wait_for
        self.output = made.output
        self.wait_for(lambda: self.process.poll() is not None or "Ctrl-C ends it" in self.text(), 240)
        assert self.process.poll() is None, self.text()
        self.url = re.findall(r"(http://127\.0\.0\.1:\d+)/v1", self.text())[0]

    def text(self):
        return self.output.read_text()

    def call(self, path, body=None):
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def ask(self, user):
        """A client's request; return arm, fingerprint and id of the response."""
        body = {"model": "chat", "prompt": "ab", "max_tokens": 2, "temperature": 0, "user": user}
        status, headers, content = self.call("/v1/completions", body)
        assert status == 200, content
        answer = json.loads(content)
        return headers["x-posttrain-arm"], answer["system_fingerprint"], answer["id"]

    def canary(self):
        return json.loads(self.call("/v1/canary")[2])

    def feed(self, liked):
        """Clients rate the responses of the arm `liked` as good, the others as bad, until the canary decides."""
        for number in range(200):
            arm, _, response = self.ask(f"user-{number}")
            rating = {"id": response, "rating": "good" if arm == liked else "bad"}
            assert self.call("/v1/feedback", rating)[0] == 200
            if self.canary()["state"] != "running":
                return
        raise AssertionError(self.canary())

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0
        return self.text()


@pytest.fixture
def made(checkout):
    own = checkout("canary", RECIPE)
    own.finish(own.run("inprocess"))
    assert find_champion(own.layout, "chat").version == 1
    return own


def list_actions(made):
    return [e["action"] for e in read_entries(made.layout) if e["action"].startswith("canary ")]


def test_clients_make_a_better_challenger_champion_and_all_of_them_get_it(made, processes):
    before = find_champion(made.layout, "chat")
    server = Endpoint(made, processes, "--gate", "exam", "--follow")
    server.feed("challenger")
    processes.wait_for(lambda: server.canary()["state"] == "promoted", 120, said=server.text)
    after = find_champion(made.layout, "chat")
    assert (after.version, after.key != before.key) == (2, True)
    fingerprint = f"posttrain-{after.digest[:12]}"
    assert {server.ask(f"user-{number}")[1] for number in range(10)} == {fingerprint}
    status, headers, _ = server.call("/v1/completions", {"model": "chat", "prompt": "ab", "max_tokens": 1})
    assert (status, "version 2" in headers["x-posttrain-model"]) == (200, True)
    assert server.call("/health")[0] == 200
    metrics = server.call("/metrics")[2].decode()
    assert 'posttrain_serve_canary_state{state="promoted"} 1.0' in metrics
    standing = read_standing(made.layout, "chat")
    assert standing.alarms == []
    evidence = standing.moves[-1].evidence
    assert evidence["gate"] == "exam"
    assert "difference +1.0000" in evidence["canary"]["reason"]
    assert list_actions(made) == ["canary started", "canary passed"]
    text = server.end()
    assert "champion of chat: version 1 → version 2, two" in text
    made.finish(made.start("lineage", "--verify"))
    shown = made.start("champions", "chat")
    made.finish(shown)
    assert "canary: look 1: challenger 1.0000 of" in " ".join(made.output.read_text().replace("│", " ").split())
    again = made.start(*SERVE, "--gate", "exam")
    assert again.wait(240) == 3
    assert "is the champion already" in made.output.read_text()


def test_a_canary_that_passes_promotes_nothing_by_a_gate_that_was_changed_meanwhile(made, processes):
    before = find_champion(made.layout, "chat")
    server = Endpoint(made, processes, "--gate", "exam")
    made.recipe.write_text(made.recipe.read_text().replace(GATE, GATE.replace("min: 0.0", "min: 0.9")))
    server.feed("challenger")
    refused = "the canary passed, and the challenger was not promoted: settings differ from the committed recipe"
    (key,) = (manifest.key for manifest in Store(made.layout).manifests() if manifest.step == "two")
    by_hand = f"by hand: posttrain promote {key[:16]} --gate exam --name chat"
    processes.wait_for(lambda: refused in server.text() and by_hand in server.text(), 120, said=server.text)
    assert server.canary()["state"] == "passed"
    assert {server.ask(f"user-{number}")[0] for number in range(30)} == {"champion", "challenger"}
    assert find_champion(made.layout, "chat") == before
    made.recipe.write_text(RECIPE)
    server.end()
    again = Endpoint(made, processes, "--gate", "exam")  # it goes on, and now promotes
    assert again.canary()["state"] == "promoted"
    assert find_champion(made.layout, "chat").version == 2
    text = again.end()
    assert "serving mlflow:chat@champion, version 2: small.two" in text
    assert "the canary passed, and its challenger is the champion now" in text


def test_a_worse_challenger_is_stopped_and_one_without_a_passed_gate_does_not_start(made, processes):
    before = find_champion(made.layout, "chat")
    refused = made.start(*SERVE, "--gate", "strict")
    assert refused.wait(240) == 2
    assert "the gate of strict did not pass" in made.output.read_text()
    server = Endpoint(made, processes, "--gate", "exam")
    arms = {name: server.ask(name)[0] for name in (f"user-{number}" for number in range(20))}
    server.process.kill()
    server.process.wait()
    server = Endpoint(made, processes, "--gate", "exam")
    assert {name: server.ask(name)[0] for name in arms} == arms
    server.feed("champion")
    assert server.canary()["state"] == "stopped"
    assert {server.ask(name)[1] for name in arms} == {f"posttrain-{before.digest[:12]}"}
    assert list_actions(made) == ["canary started", "canary started", "canary stopped"]
    server.end()
    again = made.start(*SERVE, "--gate", "exam")
    assert again.wait(240) == 3
    assert "this canary was stopped: look 1: challenger 0.0000" in made.output.read_text()
    assert find_champion(made.layout, "chat") == before
