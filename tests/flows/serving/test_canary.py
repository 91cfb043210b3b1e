"""A canary with two real engines: who is answered by whom, what feedback decides, what a failing challenger does."""

import json
import sqlite3
from types import SimpleNamespace

import numpy as np
import pytest
from filelock import FileLock
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from flows.champions.promotion import Verdict
from flows.serving import canary as canary_module
from flows.serving import worker as worker_module
from flows.serving.app import make_app
from flows.serving.canary import Canary, CanaryOptions, check_canary, feedback_file, open_canary
from flows.serving.canary_gate import CanaryGate, look
from flows.serving.current import Current, Limits, Served
from flows.serving.models import Chosen
from flows.serving.worker import Worker
from lineage.audit.log import read_entries
from lineage.layout import Layout
from schemas.errors import GateError, PlanError
from tests.flows.serving.conftest import make_policy
from tests.waiting import wait_for

CHAMPION = Chosen("chat", None, "aa" * 32, "mlflow:chat@champion, version 1: small.one", alias="chat", key="a1" * 32)
CHALLENGER = Chosen("chat", None, "bb" * 32, "small.two (b2b2b2b2b2b2)", key="b2" * 32)
TEXT = {"model": "chat", "prompt": "ab", "max_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module")
def policies():
    return make_policy(0), make_policy(1)


class Lab:
    """An endpoint with a canary in a folder of its own; `restart` ends it and begins again with the same files."""

    def __init__(self, root, policies, **options):
        self.layout, self.policies, self.said = Layout(root), policies, []
        gate = CanaryGate(options.pop("min_samples", 20), options.pop("min_delta", 0.0))
        self.options = CanaryOptions(options.pop("share", 0.5), CHALLENGER, gate, options.pop("evaluation", None))
        self.log = root / "requests.jsonl"
        self.start()

    def start(self):
        served = [
            Served(chosen, Worker(policy, max_slots=4, max_length=96))
            for chosen, policy in zip((CHAMPION, CHALLENGER), self.policies, strict=True)
        ]
        self.current = Current(served[0])
        file = feedback_file(self.layout, CHAMPION, CHALLENGER)
        file.parent.mkdir(parents=True, exist_ok=True)
        self.canary = Canary(
            self.current, served[1], self.options, self.layout, self.said.append, FileLock(f"{file}.lock")
        )
        self.current.canary = self.canary
        self.canary.start()
        self.client = TestClient(make_app(self.current, log=self.log), base_url="http://127.0.0.1:8000")

    def end(self):
        self.current.close()
        for worker in (self.current.served.worker, self.canary.champion.worker, self.canary.challenger.worker):
            worker.close()
            worker.thread.join(60)

    def ask(self, user=None, **more):
        return self.client.post("/v1/completions", json=TEXT | ({"user": user} if user else {}) | more)

    def rate(self, answer, **given):
        return self.client.post("/v1/feedback", json={"id": answer.json()["id"], **given})

    def users(self, arm, number):
        """Names of clients of one arm."""
        names = (f"user-{i}" for i in range(10_000))
        chosen = (name for name in names if self.canary.route(name).arm == arm)
        return [next(chosen) for _ in range(number)]

    def metrics(self):
        return {
            (sample.name.removeprefix("posttrain_serve_canary_"), *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(self.client.get("/metrics").text)
            for sample in family.samples
        }

    def decisions(self):
        return [e for e in read_entries(self.layout) if e["action"].startswith("canary ")]


@pytest.fixture
def lab(tmp_path, policies, monkeypatch):
    monkeypatch.setattr(worker_module, "CLOSE_GRACE", 0.2)  # no request is on its way to an engine that ends here
    made = []

    def make(**options):
        made.append(Lab(tmp_path, policies, **options))
        return made[-1]

    yield make
    for each in made:
        each.end()


def feed(lab, arm, scores):
    """Give one score for a response to each of as many clients of an arm, without asking its engine."""
    for i, (name, score) in enumerate(zip(lab.users(arm, len(scores)), scores, strict=True)):
        response = f"cmpl-{arm[:5].encode().hex()}{i:014x}"
        lab.canary.record(response, arm, lab.canary.route(name).client)
        lab.canary.rate(response, score)


def test_clients_are_routed_by_name_in_the_given_share_also_after_a_restart_with_another_share(lab):
    tried, names = lab(share=0.1), [f"client {i}" for i in range(20_000)]
    before = {name for name in names if tried.canary.route(name).arm == "challenger"}
    assert abs(len(before) / len(names) - 0.1) < 4 * (0.1 * 0.9 / len(names)) ** 0.5
    assert {name for name in before if tried.canary.route(name).arm == "challenger"} == before
    tried.end()
    tried.options = CanaryOptions(0.3, CHALLENGER, tried.options.gate, None)
    tried.start()
    after = {name for name in names if tried.canary.route(name).arm == "challenger"}
    assert before < after
    assert abs(len(after) / len(names) - 0.3) < 4 * (0.3 * 0.7 / len(names)) ** 0.5


def test_a_response_comes_from_the_model_of_its_client_and_names_it(lab):
    tried, texts = lab(), {}
    for arm, chosen in (("champion", CHAMPION), ("challenger", CHALLENGER)):
        first, second = tried.users(arm, 2)
        answers = [tried.ask(first), tried.ask(first), tried.ask(second)]
        answers += [tried.ask(safety_identifier=first, user="someone else"), tried.ask(prompt_cache_key=second)]
        for answer in answers:
            assert answer.status_code == 200
            assert answer.json()["system_fingerprint"] == f"posttrain-{chosen.digest[:12]}"
            assert answer.headers["x-posttrain-model"] == chosen.description
            assert answer.headers["x-posttrain-arm"] == arm
        (texts[arm],) = {answer.json()["choices"][0]["text"] for answer in answers}
        streamed = tried.ask(first, stream=True)
        chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == texts[arm]
        assert streamed.headers["x-posttrain-arm"] == arm
    assert texts["champion"] != texts["challenger"]
    lines = [json.loads(line) for line in tried.log.read_text().splitlines()]
    assert [line["arm"] for line in lines] == ["champion"] * 6 + ["challenger"] * 6
    assert [line["digest"] for line in lines] == [CHAMPION.digest] * 6 + [CHALLENGER.digest] * 6
    assert len({line["response"] for line in lines}) == 12
    assert "user-" not in tried.log.read_text()
    metrics = tried.metrics()
    assert metrics["responses_total", "champion", "ok"] == metrics["responses_total", "challenger", "ok"] == 6
    assert metrics["seconds_count", "challenger"] == 6


def test_a_request_without_a_client_is_a_client_of_its_own(lab):
    tried = lab(share=0.5)
    arms = {tried.ask(max_tokens=1).headers["x-posttrain-arm"] for _ in range(40)}
    assert arms == {"champion", "challenger"}  # by chance one is missing once in 10^12


def test_one_client_is_one_sample_however_much_feedback_it_sends(lab):
    tried = lab()
    (user,) = tried.users("challenger", 1)
    answers = [tried.ask(user, max_tokens=1) for _ in range(4)]
    assert tried.rate(answers[0], rating="good").json()["counted"] is True
    assert tried.rate(answers[1], rating="bad").json()["score"] == 0.0
    tried.rate(answers[2], score=0.8)
    facts = tried.client.get("/v1/canary").json()
    assert (facts["challenger"]["samples"], facts["challenger"]["score"]) == (1, pytest.approx(0.6))
    tried.rate(answers[2], score=0.2)  # replaces 0.8
    tried.rate(answers[3], score=0.4)
    assert tried.client.get("/v1/canary").json()["challenger"]["score"] == pytest.approx(0.4)
    assert tried.metrics()["score", "challenger"] == pytest.approx(0.4)
    assert tried.metrics()["samples", "champion"] == 0


def test_a_worse_challenger_is_stopped_at_the_look_that_an_independent_computation_names(lab):
    tried, rng = lab(), np.random.default_rng(3)
    good, bad = (rng.random(60) < 0.95) * 1.0, (rng.random(60) < 0.3) * 1.0
    feed(tried, "champion", good)
    feed(tried, "challenger", bad[:19])
    assert (tried.canary.state, tried.canary.looks) == ("running", [])
    feed(tried, "challenger", bad[:20])
    wanted = look(tried.options.gate, 1, good, bad[:20])
    assert wanted.high < 0
    assert tried.canary.looks == [wanted]
    assert tried.canary.state == "stopped"
    (user,) = {"user-7"}
    assert {tried.ask(user).headers.get("x-posttrain-arm"), tried.canary.route(user).arm} == {None, "champion"}
    assert tried.client.get("/health").status_code == 200
    assert tried.metrics()["state", "stopped"] == 1
    assert tried.metrics()["share",] == 0
    assert tried.metrics()["difference", "high"] == pytest.approx(wanted.high)
    started, stopped = tried.decisions()
    assert (started["action"], started["facts"]["share"]) == ("canary started", 0.5)
    assert stopped["action"] == "canary stopped"
    assert stopped["facts"]["look"] == json.loads(json.dumps(wanted.facts()))
    assert stopped["facts"]["challenger_key"] == CHALLENGER.key
    tried.end()
    with pytest.raises(PlanError, match=r"this canary was stopped: look 1: .* to start again move .*\.sqlite away"):
        tried.start()
    tried.canary.file.close()


def test_feedback_and_looks_survive_a_restart_also_on_earlier_responses(lab):
    tried = lab(min_samples=30)
    feed(tried, "champion", [1.0, 0.0] * 20)
    feed(tried, "challenger", [1.0, 0.0] * 20)
    (user,) = tried.users("challenger", 1)
    answer, before = tried.ask(user), tried.client.get("/v1/canary").json()
    assert len(before["looks"]) == 1
    tried.end()
    tried.start()
    after = tried.client.get("/v1/canary").json()
    for arm in ("champion", "challenger"):
        assert [after[arm][name] for name in ("samples", "score")] == [
            before[arm][name] for name in ("samples", "score")
        ]
    assert (after["looks"], after["next_look_at"]) == (before["looks"], 60)
    assert tried.rate(answer, rating="good").json()["counted"] is True
    tried.end()
    tried.options = CanaryOptions(0.5, CHALLENGER, CanaryGate(10), None)
    with pytest.raises(PlanError, match=r"began with other settings \(min_samples: 30 → 10\)"):
        tried.start()


def test_a_better_challenger_is_promoted_with_its_feedback_as_evidence_and_serves_all(lab, monkeypatch):
    calls = []

    def promote_step(layout, model, gate, name, *, live):
        calls.append((model, gate, name, live["canary"]["reason"]))
        return Verdict(name, True, "champion of chat: version 1 → version 2")

    monkeypatch.setattr(canary_module, "promote_step", promote_step)
    promoted = Chosen("chat", None, CHALLENGER.digest, "mlflow:chat@champion, version 2: small.two", alias="chat")
    monkeypatch.setattr(canary_module, "choose", lambda *_: promoted)
    tried = lab(evaluation="exam")
    text = tried.ask(tried.users("challenger", 1)[0]).json()["choices"][0]["text"]
    feed(tried, "champion", [0.0] * 20)
    assert tried.canary.describe() == f"canary running: 50% of the clients get {CHALLENGER.description}"
    feed(tried, "challenger", [1.0] * 20)
    wait_for(lambda: tried.canary.state == "promoted")
    assert tried.canary.describe() == "the canary passed, and its challenger is the champion now"
    assert calls == [(CHALLENGER.key, "exam", "chat", tried.canary.reason)]
    assert [e["action"] for e in tried.decisions()] == ["canary started", "canary passed"]
    wait_for(lambda: not tried.canary.champion.worker.thread.is_alive())
    answers = [tried.ask(f"user-{i}") for i in range(6)]
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {text}
    assert {answer.headers["x-posttrain-model"] for answer in answers} == {promoted.description}
    assert tried.client.get("/health").status_code == 200


def test_a_refused_promotion_leaves_the_canary_as_it_is_and_says_why(lab, monkeypatch):
    def promote_step(*_, **__):
        raise GateError("settings differ from the committed recipe")

    monkeypatch.setattr(canary_module, "promote_step", promote_step)
    tried = lab(evaluation="exam")
    feed(tried, "champion", [0.0] * 20)
    feed(tried, "challenger", [1.0] * 20)
    wait_for(lambda: "not promoted: settings differ from the committed recipe" in tried.said[-1])
    assert tried.said[-1].endswith(f"by hand: posttrain promote {CHALLENGER.key[:16]} --gate exam --name chat")
    assert tried.canary.state == "passed"
    assert tried.ask(tried.users("challenger", 1)[0]).headers["x-posttrain-arm"] == "challenger"


@pytest.mark.parametrize("stream", [False, True])
def test_while_the_challenger_fails_the_champion_answers_and_the_failures_count(lab, monkeypatch, stream):
    tried = lab(share=0.5)
    users, wanted = tried.users("challenger", 12), tried.ask(tried.users("champion", 1)[0]).json()["choices"][0]["text"]

    def fail(*_):
        raise RuntimeError("no memory left")

    monkeypatch.setattr("flows.serving.batch.Batch.step", fail_only(tried.canary.challenger.worker, fail))
    for number, user in enumerate(users[:9], 1):
        answer = tried.ask(user, stream=stream)
        assert answer.status_code == 200
        assert answer.headers["x-posttrain-arm"] == "fallback"
        assert answer.headers["x-posttrain-model"] == CHAMPION.description
        assert wanted in answer.text or stream
        assert tried.canary.file.samples("challenger") == number
    assert tried.client.get("/v1/canary").json()["challenger"]["score"] == 0.0
    if not stream:  # feedback on the champion's replacement says nothing about either model
        assert tried.rate(answer, rating="good").json()["counted"] is False
    assert tried.canary.state == "running"
    assert tried.ask(users[9], stream=stream).status_code == 200
    assert tried.canary.state == "stopped"
    assert "the challenger failed 10 times in a row: RuntimeError: no memory left" in tried.canary.reason
    assert "x-posttrain-arm" not in tried.ask(users[10], stream=stream).headers
    assert tried.metrics()["responses_total", "challenger", "failed"] == 10
    assert tried.metrics()["responses_total", "fallback", "ok"] == 10


def fail_only(worker, fail):
    """A step of any batch, which fails for those of one engine."""
    from flows.serving.batch import Batch  # before it is replaced

    step = Batch.step
    return lambda batch: fail() if batch.model is worker.policy.model else step(batch)


def test_a_challenger_whose_engine_ended_is_not_asked_again(lab):
    tried = lab()
    (user,) = tried.users("challenger", 1)
    tried.canary.challenger.worker.close()
    tried.canary.challenger.worker.thread.join(60)
    answer = tried.ask(user)
    assert (answer.status_code, answer.headers.get("x-posttrain-arm")) == (200, "champion")
    assert (tried.canary.state, tried.canary.reason) == ("stopped", "the engine of the challenger has ended")
    assert tried.client.get("/health").status_code == 200


def test_a_request_that_only_the_challenger_cannot_read_is_answered_and_one_that_neither_can_is_refused(lab):
    tried = lab()
    (user,) = tried.users("challenger", 1)
    tried.canary.challenger.worker.max_length = 8
    assert tried.ask(user, prompt="a" * 20).headers["x-posttrain-arm"] == "fallback"
    assert tried.canary.answered["challenger", "failed"] == 1
    refused = tried.ask(user, prompt="a" * 500)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert tried.canary.answered["challenger", "failed"] == 1


def test_another_champion_ends_the_canary(lab):
    tried = lab()
    other = Chosen("chat", None, "cc" * 32, "mlflow:chat@champion, version 3: small.three", alias="chat")
    worker = Worker(tried.policies[0], max_slots=1, max_length=96)
    tried.current.switch(other, lambda chosen: Served(chosen, worker))
    assert tried.canary.state == "stopped"
    assert tried.canary.reason == "the champion is now mlflow:chat@champion, version 3: small.three"
    assert {tried.ask(f"user-{i}").json()["system_fingerprint"] for i in range(6)} == {f"posttrain-{'cc' * 6}"}


HOSTILE = [
    ({"id": "cmpl-" + "0" * 24, "rating": "good"}, 404, "no response of this canary has the id"),
    ({"id": "cmpl-" + "0" * 24}, 400, "give either `rating`"),
    ({"id": "cmpl-" + "0" * 24, "rating": "good", "score": 1}, 400, "give either `rating`"),
    ({"id": "cmpl-" + "0" * 24, "rating": "great"}, 400, "rating: Input should be 'good' or 'bad'"),
    ({"id": "cmpl-" + "0" * 24, "score": 1.5}, 400, "score: Input should be less than or equal to 1"),
    ({"id": "cmpl-" + "0" * 24, "score": -1}, 400, "score: Input should be greater than or equal to 0"),
    ({"id": "cmpl-" + "0" * 24, "score": True}, 400, "score: Input should be a valid number"),
    ({"id": "cmpl-" + "0" * 24, "score": "1"}, 400, "score: Input should be a valid number"),
    ({"id": "cmpl-" + "0" * 24, "score": None}, 400, "give either `rating`"),
    ({"id": "cmpl-' OR 1=1 --", "score": 1}, 400, "id: must be the `id` of a response of this server"),
    ({"id": ["cmpl-" + "0" * 24], "score": 1}, 400, "id: Input should be a valid string"),
    ({"id": "cmpl-" + "0" * 24, "score": 1, "arm": "challenger"}, 400, "unknown parameter: arm"),
    ({"score": 1}, 400, "id: Field required"),
    ([], 400, "the body must be a JSON object"),
    ("good", 400, "the body must be a JSON object"),
    (b'{"id": "x", "score": NaN}', 400, "NaN is not a JSON number"),
    (b'{"id": "x", "score": 1, "score": 0}', 400, "occurs twice"),
    (b'{"id"', 400, "the body is not JSON"),
    (b"[" * 3000, 413, "values"),
    (b'{"id": "' + b"x" * 5000 + b'"}', 413, "the body is longer than 4096 bytes"),
]


def test_hostile_feedback_is_refused_with_its_reason_and_changes_nothing(lab):
    tried = lab()
    for body, status, message in HOSTILE:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = tried.client.post("/v1/feedback", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == status, body
        assert message in answer.json()["error"]["message"], body
    assert tried.client.post("/v1/feedback", content=b"{}").status_code == 415
    assert tried.client.get("/v1/feedback").status_code == 405
    assert [tried.canary.file.samples(arm) for arm in ("champion", "challenger")] == [0, 0]


@pytest.mark.parametrize("name", [7, "", "x" * 257, ["a"], {"a": 1}, True])
def test_a_client_must_be_named_by_a_short_text(lab, name):
    answer = lab().client.post("/v1/completions", json=TEXT | {"user": name})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "user")


def test_health_fails_while_feedback_cannot_be_recorded_and_responses_go_on(lab, monkeypatch):
    tried = lab()
    answer = tried.ask("ada")
    with monkeypatch.context() as patch:

        def fail(*_):
            raise sqlite3.OperationalError("database or disk is full")

        patch.setattr(tried.canary.file, "record", fail)
        patch.setattr(tried.canary.file, "rate", fail)
        assert tried.ask("ada").status_code == 200
        assert tried.rate(answer, rating="good").status_code == 503
        health = tried.client.get("/health")
        assert (health.status_code, health.json()["reason"]) == (503, "feedback cannot be recorded")
        assert any("database or disk is full" in line for line in tried.said)
    assert tried.rate(answer, rating="good").status_code == 200
    assert tried.client.get("/health").status_code == 200


def test_feedback_without_a_canary_is_refused(policies):
    served = Served(CHAMPION, SimpleNamespace(max_length=8, close=lambda: None))
    client = TestClient(make_app(Current(served)), base_url="http://127.0.0.1:8000")
    answer = client.post("/v1/feedback", json={"id": "cmpl-" + "0" * 24, "score": 1})
    assert (answer.status_code, client.get("/v1/canary").status_code) == (404, 404)
    assert "posttrain serve --canary" in answer.json()["error"]["message"]


def test_a_damaged_file_and_a_second_process_are_refused(tmp_path, monkeypatch):
    layout, current = Layout(tmp_path), Current(Served(CHAMPION, None))
    options = CanaryOptions(0.1, CHALLENGER, CanaryGate(), None)
    monkeypatch.setattr(canary_module, "load", lambda chosen, *_: Served(chosen, None))
    file = feedback_file(layout, CHAMPION, CHALLENGER)
    file.parent.mkdir(parents=True)
    asked = (current, options, layout, Limits(1, None), "cpu", "float32", print)
    with FileLock(f"{file}.lock"), pytest.raises(PlanError, match="another process runs this canary"):
        open_canary(*asked)
    file.write_bytes(b"no database" * 1000)
    with pytest.raises(PlanError, match="the feedback of this canary cannot be read"):
        open_canary(*asked)


@pytest.mark.parametrize(
    ("champion", "challenger", "message"),
    [
        (CHALLENGER, CHAMPION, "--canary compares with a champion: posttrain serve mlflow:NAME@champion"),
        (CHAMPION, CHAMPION, "is the champion already"),
        (CHAMPION, Chosen("folder", None, "", "a folder"), "give a model of this checkout"),
        (CHAMPION, Chosen("smol", None, "dd" * 32, "hub:someone/smol"), "give a model of this checkout"),
    ],
)
def test_canaries_that_make_no_sense_are_refused_before_a_model_is_loaded(tmp_path, champion, challenger, message):
    with pytest.raises(PlanError, match=message):
        check_canary(champion, CanaryOptions(0.1, challenger, CanaryGate(), None), Layout(tmp_path))
