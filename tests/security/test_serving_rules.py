"""Who is answered, how many at once and for how long: heads of requests, bare connections, slow clients."""

import asyncio
import gc
import json
import socket
import threading
import time
from types import SimpleNamespace

import openai
import pytest
import uvicorn

from flows.serving.app import make_app
from flows.serving.batch import Batch
from flows.serving.current import Current, Served
from flows.serving.models import Chosen
from flows.serving.rules import Rules, read_rules
from flows.serving.server import configuration, listen
from flows.serving.vllm import replace_process
from flows.serving.worker import Worker
from schemas.errors import PlanError
from tests.conftest import small_policy
from tests.security.endpoint import HELLO, Client, read_reply
from tests.waiting import wait_for

TOKEN = "a-token-of-this-test"


@pytest.fixture(scope="module")
def policy():
    return small_policy(128, hidden_size=32, intermediate_size=64, num_attention_heads=4, head_dim=8)


@pytest.fixture
def serve(policy, monkeypatch):
    """Serves the tiny model by some rules; ends it after the test."""
    started = []
    monkeypatch.setattr("flows.serving.worker.CLOSE_GRACE", 0.05)

    def start(**rules):
        worker = Worker(policy, max_slots=4, max_length=96)
        current, opened = Current(Served(Chosen("tiny", None, "ab" * 32, "a tiny model"), worker)), listen(0)
        server = uvicorn.Server(configuration(make_app(current, Rules(**rules)), Rules(**rules)))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([opened])))
        thread.start()
        started.append((server, thread, current))
        wait_for(lambda: server.started)
        port = opened.getsockname()[1]
        return SimpleNamespace(client=Client(port), port=port, server=server, worker=worker)

    yield start
    for server, thread, current in started:
        server.should_exit = True
        thread.join(60)
        current.close()
        current.served.worker.thread.join(60)
        assert not current.served.worker.thread.is_alive()


def test_only_names_of_this_machine_are_answered(serve):
    made = serve(hosts=frozenset({"models.lab", "named.lab:8443"}))
    port = made.port
    own = [f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", f"LOCALHOST:{port}", "models.lab"]
    for host in [*own, "models.lab:1234", "named.lab:8443"]:
        assert made.client.get(Host=host).status == 200
        assert made.client.post(HELLO, Host=host).status == 200
    foreign = ["evil.example", f"evil.example:{port}", "127.0.0.1", "localhost", "localhost:1", f"127.0.0.2:{port}"]
    more = ["named.lab", "named.lab:1", f"localhost:{port}.evil.example", f"a@localhost:{port}", "", "x" * 3000, ":"]
    for host in foreign + more:
        for reply in (made.client.get(Host=host), made.client.post(HELLO, Host=host)):
            assert (reply.status, reply.error["code"]) == (421, "unknown_host"), host
    assert made.client.send(b"GET /health HTTP/1.1\r\n\r\n").status == 400
    assert made.client.send(b"GET /health HTTP/1.0\r\n\r\n").status == 421
    twice = f"GET /health HTTP/1.1\r\nHost: localhost:{port}\r\nHost: evil.example\r\n\r\n"
    assert made.client.send(twice.encode()).status == 400
    absolute = f"GET http://evil.example/health HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
    assert made.client.send(absolute.encode()).status == 404


def test_pages_from_elsewhere_are_not_answered(serve):
    made = serve()
    own = f"http://127.0.0.1:{made.port}"
    assert made.client.post(HELLO, Origin=own).status == 200
    others = [
        "http://evil.example",
        "null",
        "",
        "http://localhost",
        f"http://localhost:{made.port}",
        own + ".evil",
        "*",
    ]
    for origin in others:
        for reply in (made.client.get("/v1/models", Origin=origin), made.client.post(HELLO, Origin=origin)):
            assert (reply.status, reply.error["code"]) == (403, "foreign_origin"), origin
    asked = made.client.send(made.client.head("OPTIONS", Origin=own, Access_Control_Request_Method="POST"))
    assert asked.status == 405
    for reply in (asked, made.client.get(Origin=own), made.client.get()):
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_a_form_of_a_page_is_no_request(serve):
    made = serve()
    kinds = [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json"]
    for kind in [*kinds, "application/json; charset=utf-16", "application/jsonp", "text/json", "application/json, x"]:
        assert made.client.post(HELLO, Content_Type=kind).status == 415, kind
    for kind in ("application/json", "Application/JSON; charset=UTF-8"):
        assert made.client.post(HELLO, Content_Type=kind).status == 200
    assert made.client.post(HELLO, Content_Encoding="gzip").status == 415


def test_a_token_is_wanted_where_there_is_one(serve):
    made = serve(token=TOKEN)
    assert made.client.get().status == 200  # /health alone
    wrong = [
        None,
        "",
        TOKEN,
        f"Basic {TOKEN}",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer é",
    ]
    for given in wrong:
        for reply in (made.client.get("/v1/models", Authorization=given), made.client.post(HELLO, Authorization=given)):
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), given
            assert reply.error["code"] == "invalid_api_key"
            assert TOKEN.encode() not in reply.body
    assert made.client.post(HELLO, Authorization=f"Bearer {TOKEN}").status == 200
    with openai.OpenAI(base_url=f"http://127.0.0.1:{made.port}/v1", api_key=TOKEN, max_retries=0) as client:
        assert client.chat.completions.create(**HELLO).choices
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="none").models.list()


def test_rules_of_the_command_line(tmp_path):
    def read(hosts=(), variable=None, timeout=5.0, **environment):
        return read_rules(hosts, variable, 3, timeout, environment)

    assert read() == Rules(max_queue=3, timeout=5.0)
    assert read(["Models.Lab"], POSTTRAIN_SERVE_TOKEN=TOKEN).hosts == {"models.lab"}
    assert read(POSTTRAIN_SERVE_TOKEN=TOKEN, MINE="mine").token == TOKEN
    assert read(variable="MINE", POSTTRAIN_SERVE_TOKEN=TOKEN, MINE="mine").token == "mine"
    for wrong in ({"variable": "MINE"}, {"POSTTRAIN_SERVE_TOKEN": ""}, {"variable": "MINE", "MINE": "with spaces"}):
        with pytest.raises(PlanError, match=r"MINE|POSTTRAIN_SERVE_TOKEN"):
            read(**wrong)
    for host in ("", "0.0.0.0", "*", "http://a", "a b", "é.lab"):
        with pytest.raises(PlanError, match="--host"):
            read([host])
    for timeout in (float("nan"), float("inf")):
        with pytest.raises(PlanError, match="--timeout"):
            read(timeout=timeout)
    chosen = Chosen("tiny", tmp_path, "", "")
    with pytest.raises(PlanError, match="vLLM's server has limits of its own"):
        replace_process(chosen, Rules(max_queue=1), port=1, dtype=None, max_slots=1, max_length=None)


@pytest.fixture
def held(monkeypatch):
    """Stops the engine before its next token until the test lets it go on."""
    go, step = threading.Event(), Batch.step
    monkeypatch.setattr(Batch, "step", lambda batch: (go.wait(60), step(batch))[1])
    yield go
    go.set()


def test_no_more_than_so_many_requests_wait(serve, held):
    made = serve(max_queue=3)
    replies = []
    askers = [threading.Thread(target=lambda: replies.append(made.client.post(HELLO).status)) for _ in range(3)]
    for asker in askers:
        asker.start()
    wait_for(lambda: len(made.worker.batch.samples) + len(made.worker.waiting) + made.worker.arrived.qsize() == 3)
    refused = made.client.post(HELLO)
    assert (refused.status, refused.error["code"], refused.error["type"]) == (429, "queue_full", "rate_limit_error")
    assert int(refused.headers["retry-after"]) > 0
    assert made.client.get().status == 200
    held.set()
    for asker in askers:
        asker.join(60)
    assert replies == [200] * 3
    assert made.client.post(HELLO).status == 200


def test_an_answer_that_takes_too_long_is_given_up(serve, held):
    made = serve(timeout=0.4)
    reply = made.client.post(HELLO)
    assert (reply.status, reply.error["code"]) == (504, "timeout")
    streamed = made.client.post({**HELLO, "stream": True})
    assert streamed.status == 200
    assert b"was not complete within" in streamed.body
    assert b"[DONE]" not in streamed.body
    held.set()
    wait_for(lambda: not made.worker.batch.samples and not made.worker.waiting)


def test_half_open_connections_are_closed(serve):
    made = serve(head_seconds=0.4, body_seconds=0.4)
    silent, begun, slow = (made.client.connect() for _ in range(3))
    begun.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")
    slow.sendall(made.client.head(Content_Length="100") + b'{"model"')
    assert read_reply(silent).status == 0
    late = read_reply(begun)
    assert (late.status, late.error["message"]) == (408, "no whole request came within 0.4 s")
    assert read_reply(slow).status == 408
    for opened in (silent, begun, slow):
        assert opened.recv(1) == b""
        opened.close()
    wait_for(lambda: not made.server.server_state.connections)


def test_a_request_that_comes_byte_by_byte_is_given_up(serve):
    made = serve(head_seconds=0.4, body_seconds=0.4)

    def send_slowly(opened, whole):
        for at in range(len(whole)):
            opened.sendall(whole[at : at + 1])
            time.sleep(0.005)

    head, whole_head = b"GET /health HTTP/1.1\r\nX: ", made.client.head(Content_Length="5000")
    for start, rest in ((head, b"x" * 4000), (whole_head, b" " * 4000)):
        with made.client.connect() as opened:
            opened.sendall(start)
            begun = time.monotonic()
            with pytest.raises(OSError, match=r"reset|Broken pipe|abort"):
                send_slowly(opened, rest)
            assert time.monotonic() - begun < 15


def test_a_second_request_has_no_longer_than_a_first(serve):
    made = serve(head_seconds=0.4)
    with made.client.connect() as opened:
        opened.sendall(made.client.head("GET", "/health", Connection="keep-alive"))
        assert read_reply(opened).status == 200
        opened.sendall(b"GET /hea")
        assert read_reply(opened).status == 408


def test_a_client_that_does_not_read_is_dropped(serve):
    made = serve(stall_seconds=0.4)
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.connect(("127.0.0.1", made.port))
        body = json.dumps(
            {**HELLO, "n": 128, "max_tokens": 60, "logprobs": True, "top_logprobs": 15, "seed": 1}
        ).encode()
        opened.sendall(made.client.head(Content_Length=str(len(body))) + body)
        wait_for(lambda: made.worker.batch.samples)
        wait_for(lambda: not made.server.server_state.connections)
    assert made.client.post(HELLO).status == 200


def test_the_connection_that_waits_longest_makes_room(serve):
    made = serve(max_queue=1, spare_connections=3)
    idle = [made.client.connect() for _ in range(4)]
    wait_for(lambda: len(made.server.server_state.connections) == 4)
    for _ in range(3):
        assert made.client.get().status == 200
    assert idle[0].recv(1) == b""
    idle[3].sendall(made.client.head("GET", "/health"))
    assert read_reply(idle[3]).status == 200
    for opened in idle:
        opened.close()


RAW = {
    "nothing": b"\r\n\r\n",
    "a word": b"hello\r\n\r\n",
    "NUL": b"\0" * 64 + b"\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/9": b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\nHost: a\r\n\r\n",
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    "a space in a name": b"GET / HTTP/1.1\r\nHo st: a\r\n\r\n",
    "a folded first header": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n",
    "a long line": b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "an endless header": b"GET / HTTP/1.1\r\nHost: " + b"a" * 200000,
    "10,000 headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10000,
    "a header and no more": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 6000,
}
BODIES = {
    "no number": ({"Transfer-Encoding": "chunked"}, b"zz\r\nhello\r\n0\r\n\r\n"),
    "a negative chunk": ({"Transfer-Encoding": "chunked"}, b"-5\r\nhello\r\n0\r\n\r\n"),
    "a chunk too short": ({"Transfer-Encoding": "chunked"}, b"5\r\nhel\r\n0\r\n\r\nxxxxxxxx"),
    "a huge chunk": ({"Transfer-Encoding": "chunked"}, b"f" * 30 + b"\r\nhello"),
    "a long extension": ({"Transfer-Encoding": "chunked"}, b"5;" + b"x" * 100000 + b"\r\nhello\r\n0\r\n\r\n"),
    "many trailers": ({"Transfer-Encoding": "chunked"}, b"0\r\n" + b"a: b\r\n" * 20000 + b"\r\n"),
    "another coding": ({"Transfer-Encoding": "gzip"}, b"hello"),
    "two codings": ({"Transfer-Encoding": "gzip, chunked"}, b"0\r\n\r\n"),
    "both lengths": ({"Transfer-Encoding": "chunked", "Content-Length": "5"}, b"0\r\n\r\n"),
    "a negative length": ({"Content-Length": "-1"}, b""),
    "a word as length": ({"Content-Length": "five"}, b"hello"),
    "a length with a sign": ({"Content-Length": "+5"}, b"hello"),
    "two lengths": ({"Content-Length": "5, 6"}, b"hello"),
    "a wish": ({"Content-Length": "5", "Expect": "the-unexpected"}, b"hello"),
}


def test_what_is_no_http_gets_a_status_below_500(serve):
    made = serve(head_seconds=0.5, body_seconds=0.5)
    replies = {name: made.client.send(content) for name, content in RAW.items()}
    for name, (headers, body) in BODIES.items():
        replies[name] = made.client.send(made.client.head(**headers) + body)
    assert {name: reply.status for name, reply in replies.items() if not 400 <= reply.status < 500} == {}
    assert {name for name, reply in replies.items() if "message" not in reply.error} == set()
    assert made.client.get().status == 200
    many = made.client.get(**{f"X-{i}": "a" for i in range(200)})
    assert (many.status, many.error["type"]) == (431, "invalid_request_error")


def test_other_methods_and_paths(serve):
    made = serve()
    for method in ("HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        assert made.client.send(made.client.head(method, Content_Length="0")).status == 405
    for path in (
        "/",
        "/health/",
        "//health",
        "/v1",
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "/%00",
        "/%ff",
        "/docs",
        "/" * 5000,
    ):
        assert made.client.get(path).status == 404, path
    upgrade = made.client.get("/v1/models", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Key="eA==")
    assert upgrade.status == 200  # the wish to change over is not heard


def test_requests_that_come_at_once_are_answered_in_order(serve):
    made = serve()
    one = made.client.head("GET", "/health", Connection="keep-alive")
    with made.client.connect() as opened:
        opened.sendall(one * 300 + made.client.head("GET", "/nowhere"))
        content = b""
        while part := opened.recv(65536):
            content += part
    assert content.count(b"HTTP/1.1 200 OK") == 300
    assert content.rindex(b"HTTP/1.1 404") > content.rindex(b"HTTP/1.1 200 OK")


def test_a_refused_body_does_not_become_the_next_request(serve):
    made = serve()
    hidden = made.client.head("GET", "/v1/models", Connection="close")
    with made.client.connect() as opened:
        length = {"Content-Length": str(len(hidden)), "Content-Type": "text/plain", "Connection": "keep-alive"}
        opened.sendall(made.client.head(**length) + hidden + made.client.head("GET", "/nowhere"))
        content = b""
        while part := opened.recv(65536):
            content += part
    assert content.count(b"HTTP/1.1") == 2
    assert b"415" in content
    assert b"404" in content


def test_a_client_that_leaves_while_it_sends_is_no_error(serve, caplog):
    made = serve()
    for _ in range(20):
        with made.client.connect() as opened:
            opened.sendall(made.client.head(Content_Length="1000") + b'{"model"')
    wait_for(lambda: not made.server.server_state.connections)
    assert made.client.post(HELLO).status == 200
    gc.collect()
    assert not caplog.records
