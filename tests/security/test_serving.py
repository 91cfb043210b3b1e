"""More than 200 malformed and huge requests against a real `posttrain serve`.

Each is refused in the shape of OpenAI's errors, none with status 500, while /health answers within a second and the
server's memory stays bounded.
"""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest

from tests.conftest import small_policy
from tests.security.endpoint import HELLO, Client, Watch
from tests.waiting import wait_for

LENGTH = 512
TEXT = {"model": "tiny", "prompt": "ab", "max_tokens": 2}
MEMORY = 200 * 2**20
"""Bytes that the server may grow by; the requests that the limits are made for took gigabytes."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """`posttrain serve` on a folder, in a process of its own."""
    from learning.models.policy import save_policy

    root = tmp_path_factory.mktemp("serving")
    save_policy(small_policy(512, hidden_size=32, intermediate_size=64, num_attention_heads=4, head_dim=8), root / "p")
    words = ["serve", str(root / "p"), "--name", "tiny", "--port", "0", "--max-length", str(LENGTH)]
    kept = {k: v for k, v in os.environ.items() if k != "POSTTRAIN_SERVE_TOKEN"}
    output = root / "output.txt"
    with output.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=kept | {"POSTTRAIN_ROOT": str(root), "OMP_NUM_THREADS": "1"},
        )
    try:
        wait_for(lambda: "Ctrl-C ends it" in output.read_text(), alive=lambda: process.poll() is None)
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/v1", output.read_text())
        yield SimpleNamespace(client=Client(int(port)), process=psutil.Process(process.pid), output=output)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def chat(**more):
    return json.dumps({**HELLO, **more}).encode()


def text(**more):
    return json.dumps({**TEXT, **more}).encode()


WRONG_BODIES = {
    "nothing": b"",
    "a word": b"hello",
    "a number": b"1",
    "null": b"null",
    "a list": b"[]",
    "a text": b'"hello"',
    "half an object": b'{"model": "tiny"',
    "two objects": b"{}{}",
    "single quotes": b"{'model': 'tiny'}",
    "no UTF-8": b'{"model": "\xff"}',
    "UTF-16": chat().decode().encode("utf-16"),
    "a mark of order": b"\xef\xbb\xbf{}",
    "NUL": b"\0" * 100,
    "a comma too many": b'{"model": "tiny",}',
    "a comment": b"{} // so",
    "NaN": b'{"n": NaN}',
    "infinity": chat(temperature=0)[:-1] + b', "top_p": -Infinity}',
    "1e999": chat()[:-1] + b', "top_p": 1e999}',
    "a key twice": chat()[:-1] + b', "model": "tiny"}',
    "deep lists": b"[" * 40000,
    "deep objects": b'{"a":' * 15000,
    "deep and closed": b"[" * 30000 + b"]" * 30000,
    "17 levels": b'{"metadata":' + b"[" * 17 + b"]" * 17 + b"}",
    "half a pair": chat(messages=[{"role": "user", "content": "\ud800"}]),
    "the other half": text(prompt="\udfff"),
    "half a pair as a key": chat(**{"\ud800": 1}),
    "half a pair as the model": chat(model="\udcff"),
    "NUL in a text": chat(messages=[{"role": "user", "content": "a\0b"}]),
    "NUL as a key": chat(**{"\0": 1}),
    "5,000 digits": chat()[:-1] + b', "seed": ' + b"9" * 5000 + b"}",
    "65 bits": chat(seed=2**65),
    "-5,000 digits": chat()[:-1] + b', "n": -' + b"9" * 5000 + b"}",
    "a long exponent": b'{"n": 1e' + b"9" * 5000 + b"}",
    "many keys": json.dumps({str(i): i for i in range(5000)}).encode(),
    "many lists": b"[" + b"[]," * 20000 + b"[]]",
    "a long key": chat(**{"k" * 50000: 1}),
    "a long model": chat(model="m" * 50000),
    "raw line feed": b'{"a": "\n"}',
    "many values": b'{"metadata": [' + b"1," * 30000 + b"1]}",
    "a bad escape": b'{"a": "\\x"}',
    "no model": b"{}",
}
VALUES = [
    None,
    True,
    -1,
    0,
    1.5,
    1e308,
    2**63,
    "x",
    "",
    [],
    {},
    [1, 2],
    {"a": 1},
    [[]],
    [None],
    "x" * 20000,
    ["x"] * 500,
]
FIELDS = ["model", "n", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "tools"]
MESSAGES = [
    [{}],
    [[]],
    ["hello"],
    [1],
    [None],
    [{"role": "user"}],
    [{"content": "a"}],
    [{"role": 1, "content": "a"}],
    [{"role": "user", "content": {"a": 1}}],
    [{"role": "user", "content": [1]}],
    [{"role": "tool", "content": "a"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
    [{"role": "user<eos>", "content": "a"}],
    [{"role": "x" * 10000, "content": "a"}],
    [{"role": "", "content": "a"}],
    [{"role": "user", "content": "a", "tool_calls": [1]}],
    [{"role": "user", "content": "a", "k" * 10000: 1}],
    [{"role": "user", "content": "x" * 5000}],
    [{"role": "user", "content": "<eos>" * 500}],
    [{"role": "user", "content": ""}] * 2000,
    [{"role": "user", "content": "{{ cycler.__init__.__globals__ }}" * 20}],
    {"role": "user", "content": "a"},
    "hello",
]
PROMPTS = [
    1,
    None,
    {},
    [],
    [[]],
    [""],
    [1.5],
    [True],
    [-1],
    [10**6],
    [2**64],
    ["a", 1],
    [["a"]],
    [[1], "a"],
    ["a"] * 200,
    [[5]] * 129,
    [[1] * 513],
    [1] * 2000,
    "x" * 17000,
    "😀" * 9000,
    ["x" * 3000, "x" * 17000],
    "\\" * 17000,
    [None] * 1000,
]
CHOICES = [
    {"n": 129},
    {"n": 128, "prompt": ["a", "b"]},
    {"logprobs": 6},
    {"logprobs": -1},
    {"stop": ["x"] * 5},
    {"stop": "x" * 257},
    {"stop": [""]},
    {"stop": [1]},
    {"max_tokens": 2**64},
    {"max_tokens": 513},
    {"best_of": 2},
    {"echo": True},
    {"suffix": "x"},
    {"logit_bias": {"1": 100}},
    {"stream_options": {"x": 1}},
    {"top_k": 1},
]


def malformed():
    """(name, path, body) of requests that are well-formed HTTP."""
    chats, texts = "/v1/chat/completions", "/v1/completions"
    for name, body in WRONG_BODIES.items():
        yield name, texts if "prompt" in name else chats, body
    for name in FIELDS:
        for i, value in enumerate(VALUES):
            yield f"{name}: value {i}", chats, chat(**{name: value})
    for i, messages in enumerate(MESSAGES):
        yield f"messages {i}", chats, chat(messages=messages)
    for i, prompt in enumerate(PROMPTS):
        yield f"prompt {i}", texts, text(prompt=prompt)
    for i, more in enumerate(CHOICES):
        yield f"choices {i}", texts, text(**more)


def test_malformed_requests_are_refused_by_name(served):
    """Bodies that are no request of the API, one after the other."""
    served.client.post(HELLO)
    before, answers = served.process.memory_info().rss, {}
    with Watch(served.client) as health:
        for name, path, body in malformed():
            answers[name] = served.client.post(body, path)
    assert len(answers) > 200
    strange = {name: reply for name, reply in answers.items() if reply.status not in (200, 400, 404, 413)}
    assert not strange
    refused = {name: reply for name, reply in answers.items() if reply.status != 200}
    assert all(reply.error["type"] == "invalid_request_error" for reply in refused.values())
    assert max(len(reply.body) for reply in refused.values()) < 2000
    fine = {name for name, reply in answers.items() if reply.status == 200}
    # What the API takes: null everywhere but in `model`, neutral values, and numbers within their limits.
    assert not {name for name in fine if name in WRONG_BODIES or name.startswith(("messages", "prompt", "choices"))}
    assert len(refused) > 200
    _check_watch(health)
    assert served.process.memory_info().rss - before < MEMORY
    assert served.output.read_text().count("Traceback") == 0


def huge():
    """(name, path, parts of the body, announced): what must be refused before it is all there."""
    million = b"x" * 10**6
    yield "a prompt of 20 MB", "/v1/completions", [text()[:-1] + b', "prompt": "', *[million] * 20, b'"}'], True
    yield "messages of 20 MB", "/v1/chat/completions", [b'{"messages": "', *[million] * 20, b'"}'], True
    yield "15 MB of empty lists", "/v1/chat/completions", [b"[", *[b"[]," * 10**6] * 5, b"[]]"], True
    yield "15 MB of empty lists, in chunks", "/v1/chat/completions", [b"[", *[b"[]," * 10**6] * 5, b"[]]"], False
    yield "20 MB in chunks", "/v1/completions", [million] * 20, False
    yield "deep lists of 5 MB", "/v1/completions", [b"[" * 10**6] * 5, True


def _whole(client, path, parts, announced):
    body = b"".join(parts)
    if announced:
        return client.head(path=path, Content_Length=str(len(body))) + body
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return client.head(path=path, Transfer_Encoding="chunked") + chunks + b"0\r\n\r\n"


def test_huge_requests_are_refused_and_health_answers_meanwhile(served):
    """4 of each at once, 20 MB and more; before there were limits one of them took 168 s and 8.4 GB."""
    client, before = served.client, served.process.memory_info().rss
    requests = [_whole(client, *case[1:]) for case in huge()]
    lengths = [client.head(Content_Length=length) for length in ("999999999999", "9" * 18, "9" * 19, "9" * 5000)]
    with Watch(client) as health, ThreadPoolExecutor(24) as pool:
        statuses = set(pool.map(lambda content: client.send(content).status, requests * 4))
        announced = [client.send(length).status for length in lengths]
    assert statuses <= {413, 0}  # 0: closed while the rest was still being sent
    assert 413 in statuses
    assert announced[:2] == [413, 413]
    assert set(announced) <= {413, 400}
    _check_watch(health)
    assert served.process.memory_info().rss - before < MEMORY


def dearest():
    """Requests just within the limits of size, or just beyond others, that cost the most to look at."""
    full = 64 * 1024 + 192 * LENGTH - 200
    chats, texts = "/v1/chat/completions", "/v1/completions"
    yield texts, text(prompt=["," * (32 * LENGTH)] * (full // (33 * LENGTH)))
    yield texts, text(stop="x" * 256, n=128, max_tokens=60)
    yield texts, text(prompt=[[5]] * 128, max_tokens=40, logprobs=5)
    yield texts, b'"' * full
    yield texts, b'"\\' * (full // 2)
    yield texts, b"[" + b"[]," * 4000 + b"1]"
    yield texts, b"[" + b"1," * (full // 2 - 10) + b"1]"
    yield texts, json.dumps({str(i): 0 for i in range(4000)}).encode()
    yield chats, chat(n=64, max_tokens=40, logprobs=True, top_logprobs=10)
    yield chats, chat(messages=[{"role": "user", "content": "<eos>" * 80}], n=64, max_tokens=20, stream=True)
    yield chats, chat(messages=[{"role": "user", "content": "<eos>" * (6 * LENGTH)}])
    yield chats, chat(messages=[{"role": "user", "content": ""}] * 1000)


def test_the_dearest_requests_keep_nothing_waiting(served):
    """36 of them at once, and beside them bodies in chunks of one byte, which take long to read."""
    before = served.process.memory_info().rss
    storm = served.client.head(Transfer_Encoding="chunked") + b"1\r\n[\r\n" * 8000 + b"0\r\n\r\n"
    cases = list(dearest())
    with Watch(served.client) as health, ThreadPoolExecutor(64) as pool:
        jobs = [pool.submit(served.client.post, body, path) for _ in range(3) for path, body in cases]
        jobs += [pool.submit(served.client.send, storm) for _ in range(8)]
        statuses = [job.result().status for job in jobs]
    assert set(statuses) <= {200, 400, 413}
    assert statuses.count(200) == 12
    assert set(statuses[-8:]) == {413}
    _check_watch(health)
    assert served.process.memory_info().rss - before < MEMORY


def test_a_normal_request_is_still_answered(served):
    assert served.client.post(HELLO).status == 200
    assert served.client.post(TEXT, "/v1/completions").status == 200


def _check_watch(health):
    assert not health.wrong
    assert len(health.seconds) >= 3
    assert max(health.seconds) < 1.0
