"""Secrets planted in the environment appear in no file and no database, while a run goes on and after it."""

import base64
import gzip
import json
import sqlite3
import threading
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import quote, quote_plus

import pyarrow.parquet as pq
import pytest

from flows.processes.secret_values import find_secrets, redact
from lineage.artifacts.store import Store
from lineage.audit.log import read_entries

REFERRED = {
    "LAB_TOKEN": "referred-7c2f-to-by-a-recipe",
    "LAB_URL_PART": "user:pw-9d1e@host",
    "LAB_ODD": "odd-41c \"planted\"\n'secret' \\ \u00e9&%+/<ends>",
    "LAB_ADDRESS": "https://planted-user:planted%2Fpw-77@host.example/hook?key=planted-query-5531&n=1",
}
PARTS = {"user": "planted-user", "password": "planted/pw-77", "query": "planted-query-5531", "half": "pw-9d1e"}
NEAR_BY = {
    "AWS_SECRET_ACCESS_KEY": "aws/planted+3b8aSecretKey",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED51F0",
    "HF_TOKEN": "hf_planted_2e4d6c8b",
    "OPENAI_API_KEY": "sk-planted-a1b2c3d4e5",
    "WANDB_API_KEY": "wandb-90ab12",
    "MY_PASSWORD": "correct-horse-planted-battery",
}
PLANTED = REFERRED | NEAR_BY
FORMS = {
    "plain": str,
    "Python": lambda v: repr(v)[1:-1],
    "ASCII": lambda v: ascii(v)[1:-1],
    "JSON": lambda v: json.dumps(v)[1:-1],
    "JSON with letters": lambda v: json.dumps(v, ensure_ascii=False)[1:-1],
    "JSON of Python": lambda v: json.dumps(repr(v))[2:-2],
    "URL": lambda v: quote(v, safe=""),
    "form": quote_plus,
    "base64": lambda v: base64.b64encode(v.encode()).decode()[: len(v.encode()) * 8 // 6],
    "hex": lambda v: v.encode().hex(),
}
LOOKED_FOR = {
    (name, form): write(value).encode() for name, value in (PLANTED | PARTS).items() for form, write in FORMS.items()
}
LAB = '''
import base64
import json
import logging
import os
import subprocess
import sys
import time
import traceback
import urllib.parse
from pathlib import Path


def uses(context, *, token: str, where: str, children: bool, more: list):
    """Says the token in every way that a step has, and waits to be looked at."""
    print("the token is", token)
    print(token[:9], token[9:], sep="", flush=True)
    sys.stderr.write(f"as an error: {token}\\n")
    logging.getLogger("lab").warning("as a warning: %s", token)
    if where:
        Path(where + ".seen").write_text("")
        limit = time.monotonic() + 120
        while not Path(where).exists() and time.monotonic() < limit:
            time.sleep(0.05)
    context.log(1, **{f"loss of {token}": 0.5})
    context.progress(1, 2, **{f"at {token}": 1.0})
    says_the_others(context)
    if children:
        subprocess.run(["echo", "of a child:", token], check=True)
        os.write(2, f"of C code: {token}\\n".encode())
    (context.output("result") / "n.txt").write_text(str(len(token)))
    return {"length": len(token), "said": f"it is {token}", f"named {token}": 1}


def says_the_others(context):
    """Writes the odd secret and the address down in all kinds of ways."""
    odd, address = os.environ["LAB_ODD"], os.environ["LAB_ADDRESS"]
    url = urllib.parse.urlsplit(address)
    for value in (odd, address, url.username, url.password, urllib.parse.unquote(url.password), url.query):
        print(value, repr(value), ascii(value), json.dumps(value), json.dumps({value: repr(value)}))
        print([value], {value: 1})
        print(urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value), value.encode(), value.encode().hex())
        print(base64.b64encode(value.encode()).decode(), base64.b64encode(b"user:" + value.encode()).decode())
        context.log(2, **{value: 1.0})
        try:
            raise KeyError(value) from ValueError(f"caused by {value!r}")
        except KeyError:
            traceback.print_exc()


def stops(context, *, token: str):
    """Ends its process with the token as its last word."""
    sys.exit(f"cannot go on with {token}")


def fails(context, *, token: str):
    """Fails with the token in its message, as clients of servers do, because of an error that says a part of it."""
    try:
        raise KeyError(token.split("@")[0])
    except KeyError as error:
        raise RuntimeError(f"401 for https://{token}/v1") from error
'''
RECIPE = """
name: discreet
stages:
  uses:
    kind: python
    function: {use: "planted_lab:uses", token: "${env:LAB_TOKEN}", where: "WHERE", children: CHILDREN,
               more: ["${env:LAB_ODD}", "${env:LAB_ADDRESS}"]}
  lessons:
    kind: synthesize
    problems: [{use: reasoning_gym, family: chain_sum, split: train, size: 8, style: short}]
    teacher: answer
"""
MODELS = """
  base:
    kind: init
    config: {model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 2, head_dim: 8}
    max_length: 64
  tuned: {kind: sft, model: base, data: lessons, max_steps: 1, per_device_train_batch_size: 4, max_length: 64}
  exam:
    kind: evaluate
    models: {base: base, tuned: tuned}
    tasks: [{use: reasoning_gym, family: chain_sum, split: test, size: 4, style: short}]
    max_completion_length: 2
    num_bootstrap: 100
"""
FAILING = """
name: failing
stages:
  fails: {kind: python, function: {use: "planted_lab:fails", token: "${env:LAB_URL_PART}"}}
  stops: {kind: python, function: {use: "planted_lab:stops", token: "${env:LAB_ODD}"}}
"""


def found_in(content):
    """Names of the planted secrets in bytes, also in what is compressed inside them."""
    texts = [content]
    if content[:2] == b"\x1f\x8b":
        texts.append(gzip.decompress(content))
    return {name for name, form in LOOKED_FOR.items() if any(form in text for text in texts)}


def scan(root):
    """(path, secret) of every secret below a folder: raw bytes, gz, cells of SQLite, columns of Parquet; and counts."""
    leaks, seen = [], {"files": 0, "cells": 0, "columns": 0}
    for path in sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink()):
        try:
            content = path.read_bytes()
        except OSError:  # removed meanwhile, by a run that goes on
            continue
        seen["files"] += 1
        leaks += [(str(path), name) for name in found_in(content)]
        if content.startswith(b"SQLite format 3\x00"):
            leaks += [(str(path), name) for name in in_database(path, seen)]
        if content[:4] == b"PAR1":
            table = pq.read_table(path)
            for column in table.column_names:
                seen["columns"] += 1
                leaks += [(f"{path}:{column}", n) for n in found_in(repr(table[column].to_pylist()).encode())]
    return leaks, seen


def in_database(path, seen):
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60) as base:
        base.text_factory = bytes
        tables = [t.decode() for (t,) in base.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            for row in base.execute(f'select * from "{table}"'):
                for cell in row:
                    seen["cells"] += 1
                    text = cell if isinstance(cell, bytes) else str(cell).encode()
                    yield from found_in(text)
                    if text[:1] == b"\x78":
                        yield from found_in(inflated(text))
    base.close()


def inflated(text):
    try:
        return zlib.decompress(text)
    except zlib.error:
        return b""


class Receiver(BaseHTTPRequestHandler):
    """Keeps what it is given."""

    bodies = []

    def do_POST(self):
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *words):
        """Quiet."""


@pytest.fixture
def receiver():
    made = type("Made", (Receiver,), {"bodies": []})
    server = HTTPServer(("127.0.0.1", 0), made)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_scan_finds_what_is_there(tmp_path):
    """A scan that could not find anything would prove nothing."""
    import pyarrow as pa

    value = PLANTED["HF_TOKEN"]
    pq.write_table(pa.table({"a": ["x", value]}), tmp_path / "a.parquet", compression="zstd")
    (tmp_path / "b.gz").write_bytes(gzip.compress(value.encode()))
    (tmp_path / "c.txt").write_text(f"so: {value}!")
    with sqlite3.connect(tmp_path / "d.db") as base:
        base.execute("create table t(x)")
        base.execute("insert into t values (?)", (zlib.compress(value.encode()),))
    base.close()
    leaks, seen = scan(tmp_path)
    assert {path.rpartition("/")[2] for path, _ in leaks} >= {"a.parquet:a", "b.gz", "c.txt", "d.db"}
    assert seen == {"files": 4, "cells": 1, "columns": 1}


def check_story(made, receiver, executor, processes, hold, afterwards):
    """Run, look while it runs, fail, ask and export; then scan everything and everything that was said."""
    environment = {**PLANTED, "OPENLINEAGE_URL": receiver.url}
    running = made.start("run", made.recipe, "--executor", executor, **environment)
    seen_file = made.layout.root / "hold.seen"
    processes.wait_for(lambda: seen_file.exists() or running.poll() is not None, 200)
    assert running.poll() is None, made.output.read_text()
    during = scan(made.layout.root)
    hold.write_text("")
    made.finish(running)
    failing = made.start("run", made.layout.root / "failing.yaml", "--executor", executor, **environment)
    assert failing.wait(240) == 1
    for words in afterwards:
        made.finish(made.start(*words, **environment))
    leaks, seen = scan(made.layout.root)
    assert (during[0], leaks) == ([], [])
    assert found_in(b"".join(receiver.bodies)) == set()
    return during[1], seen


EXPORTS = [["export", what, "tuned", "--out", f"export-{what}"] for what in ("openlineage", "prov", "provn", "bom")]
QUESTIONS = [["status"], ["logs", "fails"], ["query", "select * from events"], ["lineage", "uses"], ["report"]]


@pytest.mark.parametrize("executor", ["inprocess", pytest.param("ray", marks=pytest.mark.slow)])
def test_planted_secrets_appear_nowhere(checkout, receiver, processes, tmp_path, executor):
    hold, whole = tmp_path / "discreet" / "hold", executor == "ray"
    recipe = RECIPE.replace("WHERE", str(hold)) + (MODELS if whole else "")
    recipe = recipe.replace("CHILDREN", "true" if whole else "false")  # in-process they have the terminal, no file
    made = checkout("discreet", recipe, {"planted_lab": LAB})
    (made.layout.root / "failing.yaml").write_text(FAILING)
    afterwards = [["lineage", "--verify"], *(EXPORTS + QUESTIONS if whole else [])]
    during, after = check_story(made, receiver, executor, processes, hold, afterwards)
    assert after["files"] > (60 if whole else 20), after
    assert after["cells"] > (2000 if whole else 300), after
    assert after["columns"] > 3, after
    assert during["files"] > 5, during
    store = Store(made.layout)
    used = next(m for m in store.manifests() if m.step == "uses")
    assert used.metrics == {"length": len(PLANTED["LAB_TOKEN"]), "said": "it is ***", "named ***": 1}
    curves = [json.loads(line) for line in (store.folder(used) / "metrics.jsonl").read_text().splitlines()]
    assert curves[0]["loss of ***"] == 0.5
    assert {name for point in curves[1:] for name in point} == {"step", "time", "***", "key=***&n=1"}
    log = (store.folder(used) / "step.log").read_text()
    assert "the token is ***" in log
    assert "as an error: ***" in log
    failed = [e for e in read_entries(made.layout) if e["action"] == "run ended" and e["facts"]["exit_code"] == 1]
    events = (made.layout.run(failed[-1]["facts"]["run"]) / "events.jsonl").read_text()
    reasons = [json.loads(line).get("reason", "") for line in events.splitlines()]
    assert any("RuntimeError: 401 for https://***/v1" in reason for reason in reasons)
    assert any("SystemExit: cannot go on with ***" in reason for reason in reasons)
    if whole:
        assert "of a child: ***\nof C code: ***\n" in log
        names = {p.name for p in made.layout.state.rglob("*.db")}
        assert {"prefect.db", "mlflow.db"} <= names


def test_only_values_that_are_referred_to_and_long_enough_are_hidden(monkeypatch):
    monkeypatch.setenv("LONG", "abcdef")
    monkeypatch.setenv("SHORT", "abc")
    monkeypatch.setenv("OTHER", "other-value")
    secrets = find_secrets({"a": ["${env:LONG}", {"b": "x-${env:SHORT}", "c": "${env:UNSET}"}], "d": 3})
    assert secrets == {"abcdef"}
    assert redact({"t": "an abcdef, abc, other-value", "n": [1, "abcdef"]}, secrets) == {
        "t": "an ***, abc, other-value",
        "n": [1, "***"],
    }
