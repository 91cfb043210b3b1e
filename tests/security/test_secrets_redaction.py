"""No secret in what is said: each way of writing one down, each place where a stream can be cut, each kind of error."""

import base64
import html
import json
import os
import random
import shlex
import string
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote, quote_plus

import pytest

from flows.processes.capture import capture_output, wait_for_writers
from flows.processes.log_writer import RedactingStream
from flows.processes.redaction import SHORTEST, Redactor
from flows.processes.secret_values import find_secrets
from flows.steps import task_run
from lineage.layout import Layout
from schemas.errors import StepError
from schemas.plan import Step
from tasks.context import Context
from tests.waiting import wait_for

SECRET = "s3cret-Token-of-the-lab"
ODD = 'it\'s "odd"\n\\ <&> é😀 %2F+/=? $HOME'
URL = "postgresql://labuser:p%40ss-w0rd@db.lab/records?sslpassword=qu3ry-pass&n=1"
HOOK = "https://hooks.lab/services/T0/0123456789abcdefghij"
WRITINGS = {
    "plain": str,
    "repr": repr,
    "ascii": ascii,
    "repr of bytes": lambda v: repr(v.encode()),
    "JSON": json.dumps,
    "JSON with letters": lambda v: json.dumps(v, ensure_ascii=False),
    "JSON of repr": lambda v: json.dumps(repr(v)),
    "repr of JSON": lambda v: repr(json.dumps(v)),
    "repr in a list": lambda v: repr([f"'{v}\""]),
    "KeyError": lambda v: str(KeyError(v)),
    "URL": lambda v: quote(v, safe=""),
    "URL path": quote,
    "form": quote_plus,
    "lower": lambda v: quote(v, safe="").replace("%2F", "%2f"),
    "shell": shlex.quote,
    "HTML": html.escape,
    "hex": lambda v: v.encode().hex(),
    "HEX": lambda v: v.encode().hex().upper(),
    "JSON of JSON": lambda v: json.dumps(json.dumps(v)),
}


@pytest.mark.parametrize(
    "secret", [SECRET, ODD, URL, "abcdef", "a'b'c'd", "\\\\\\\\\\\\", "é" * 6, "line one\nline two\n"]
)
def test_every_way_of_writing_a_secret_down_is_found(secret):
    redactor = Redactor([secret])
    for name, write in WRITINGS.items():
        written = write(secret)
        redacted = redactor.text(f"before {written} after")
        assert "***" in redacted, name
        for kept in (secret, written.strip("'\"")):
            assert kept not in redacted, name
        assert redacted.startswith("before ")
        assert redacted.endswith(" after")


@pytest.mark.parametrize("secret", [SECRET, ODD, URL, "abcdefg"])
def test_base64_is_found_at_every_place_in_it(secret):
    redactor = Redactor([secret])
    for before in range(9):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            written = encode(b"user:pass:"[:before] + secret.encode() + b"...").decode()
            redacted = redactor.text(written)
            assert "***" in redacted
            assert len(redacted) - 3 < 4 * (before + 3) / 3 + 5


def test_parts_of_an_address_are_secrets_of_their_own():
    redactor = Redactor([URL, HOOK, "user-9:pw-9d1e-x@host"])
    for part in ("labuser", "p%40ss-w0rd", "p@ss-w0rd", "qu3ry-pass", "0123456789abcdefghij", "user-9", "pw-9d1e-x"):
        assert redactor.text(f"({part})") == "(***)", part
        assert redactor.text(json.dumps({part: 1})) == '{"***": 1}'
    assert redactor.text("db.lab records services host n=1") == "db.lab records services host n=1"


def test_short_values_stay_and_words_of_the_lab_too(monkeypatch):
    monkeypatch.setenv("SHORT", "x" * (SHORTEST - 1))
    monkeypatch.setenv("LONG", "x" * SHORTEST)
    assert find_secrets(["${env:SHORT}", "${env:LONG}"]) == {"x" * SHORTEST}
    assert Redactor([]).value({"a": [SECRET]}) == {"a": [SECRET]}
    assert Redactor([SECRET]).text("s3cret token of the lab") == "s3cret token of the lab"


def test_names_and_values_of_json():
    redactor = Redactor([SECRET, "other-secret"])
    value = {f"a {SECRET}": [SECRET, {SECRET: 1, "other-secret": 2}], "n": 1.5, "none": None, "yes": True}
    assert redactor.value(value) == {"a ***": ["***", {"***": 1, "*** (2)": 2}], "n": 1.5, "none": None, "yes": True}


class Stubborn(Exception):
    """Says more than its arguments."""

    def __str__(self):
        return f"always {SECRET}"


def failing(last):
    """An error with two causes that say the secret."""
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            error.add_note(f"noted {SECRET}")
            raise ValueError(f"because of {SECRET}") from error
    except ValueError:
        try:
            raise last
        except type(last) as error:
            return error


def test_errors_and_what_caused_them():
    redactor = Redactor([SECRET])
    for last in (RuntimeError(f"in the end {SECRET}"), OSError(2, SECRET), SystemExit(f"bye {SECRET}")):
        clean = redactor.error(failing(last))
        assert clean is last
        trace = "".join(traceback.format_exception(clean))
        assert SECRET not in trace
        assert trace.count("***") >= 4
    assert redactor.error(failing(Stubborn())) is None


def test_a_secret_cut_anywhere_is_found():
    rng = random.Random(0)
    texts = [
        f"a {SECRET} b {json.dumps(ODD)} c {SECRET[:-1]} d {ODD}{SECRET}",
        SECRET * 3,
        f"{SECRET[:5]}{SECRET}",
        "plain",
    ]
    patterns = Redactor([SECRET, ODD, SECRET + "-and-more"]).patterns
    for text in texts:
        content = text.encode()
        whole = RedactingStream(patterns)
        wanted = whole.feed(content) + whole.end()
        assert SECRET.encode() not in wanted
        assert (b"***" in wanted) == (text != "plain")
        for cut in range(len(content) + 1):
            stream = RedactingStream(patterns)
            assert stream.feed(content[:cut]) + stream.feed(content[cut:]) + stream.end() == wanted
        for _ in range(50):
            stream, at, redacted = RedactingStream(patterns), 0, b""
            while at < len(content):
                step = rng.randint(1, 9)
                redacted, at = redacted + stream.feed(content[at : at + step]), at + step
            assert redacted + stream.end() == wanted
        bytewise = RedactingStream(patterns)
        assert b"".join(bytewise.feed(content[i : i + 1]) for i in range(len(content))) + bytewise.end() == wanted


def test_a_longer_secret_that_begins_with_a_shorter_one_leaves_no_end():
    stream = RedactingStream(Redactor(["planted-one", "planted-one-and-more"]).patterns)
    redacted = stream.feed(b"x planted-one") + stream.feed(b"-and-more y planted-one") + stream.feed(b"-and z")
    assert redacted + stream.end() == b"x *** y ***-and z"


def test_what_is_not_a_secret_is_passed_on_as_it_is():
    rng = random.Random(1)
    content = "".join(rng.choices(string.printable, k=200_000)).encode() + bytes(range(256)) * 20
    stream = RedactingStream(Redactor([SECRET]).patterns)
    redacted = b"".join(stream.feed(content[i : i + 777]) for i in range(0, len(content), 777)) + stream.end()
    assert redacted == content


PROGRAM = """
import os, subprocess, sys, time
from pathlib import Path
from flows.steps import task_run
from flows.processes.capture import capture_output
secret, log = os.environ["LAB"], Path(sys.argv[1])
with capture_output(log, True, frozenset({secret})):
    print("of Python", secret, flush=True)
    os.write(1, b"of C " + secret.encode() + b"\\\\n")
    subprocess.run(["echo", "of a child", secret])
    subprocess.run([sys.executable, "-c", f"raise KeyError({secret!r})"])
    for i in range(len(secret)):
        os.write(1, b"cut " + secret[:i].encode())
        time.sleep(0.001)
        os.write(2, secret[i:].encode() + b"\\\\n")
    print("ready", flush=True)
    while True:
        os.write(1, f"line {secret}\\\\n".encode() * 100)
"""


def running(program, log, **more):
    house = Path(__file__).resolve().parents[2]
    environment = os.environ | {"LAB": SECRET, "PYTHONPATH": str(house)} | more
    return subprocess.Popen([sys.executable, "-c", program.replace("\\\\", "\\"), str(log)], env=environment)


def test_a_kill_leaves_a_log_without_secrets(tmp_path):
    """Killed three times in the middle of its output; looked at while it writes and after."""
    for number in range(3):
        log = tmp_path / f"step-{number}.log"
        log.touch()
        process = running(PROGRAM, log)
        try:
            wait_for(lambda log=log: b"ready" in log.read_bytes(), alive=lambda process=process: process.poll() is None)
            time.sleep(0.01 * number)
            assert SECRET.encode() not in log.read_bytes()
        finally:
            process.kill()
            process.wait()
        wait_for_writers(log)
        content = log.read_bytes()
        for text in (b"of Python ***", b"of C ***", b"of a child ***", b"KeyError: '***'", b"line ***\n"):
            assert text in content
        assert content.count(b"cut ***\n") == len(SECRET)
        assert SECRET.encode() not in content
        assert SECRET[: len(SECRET) // 2].encode() not in content.rpartition(b"\n")[0]


STAYS = """
import os, sys, time
from pathlib import Path
from flows.steps import task_run
from flows.processes.capture import capture_output
log = Path(sys.argv[1])
with capture_output(log, True, frozenset({os.environ["LAB"]})):
    if os.fork() == 0:
        while True:
            os.write(1, b"on and on " + os.environ["LAB"].encode() + b"\\\\n")
            time.sleep(0.001)
    print("held", os.environ["LAB"][:7], end="")
print("over", flush=True)
os.killpg(0, 9)
"""


def test_what_a_step_leaves_running_does_not_hold_its_log(tmp_path):
    log = tmp_path / "step.log"
    log.touch()
    house = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", STAYS.replace("\\\\", "\\"), str(log)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"LAB": SECRET, "PYTHONPATH": str(house)},
    )
    assert process.communicate(timeout=120)[0] == b"over\n"
    wait_for_writers(log)
    assert SECRET.encode() not in log.read_bytes()
    assert b"held" in log.read_bytes()


def test_streams_of_this_thread_have_no_way_around(tmp_path):
    log = tmp_path / "step.log"
    with capture_output(log, False, frozenset({SECRET, ODD})):
        print("text", SECRET)
        sys.stdout.buffer.write(SECRET.encode())
        sys.stdout.flush()
        sys.stderr.write(SECRET[:4])
        sys.stderr.write(SECRET[4:] + "\n")
        print(repr(ODD), json.dumps({ODD: 1}))
        with pytest.raises(OSError, match="fileno"):
            sys.stdout.fileno()
        print("what waits: s3cret", end="")
    assert log.read_text() == "text ***\n******\n'***' {\"***\": 1}\nwhat waits: s3cret"


def step_of(monkeypatch, run, **settings):
    """A step whose task is a function of the test."""
    module = SimpleNamespace(run=lambda stage, context: run())
    monkeypatch.setattr(task_run, "importlib", SimpleNamespace(import_module=lambda name: module))
    monkeypatch.setattr(task_run, "_parse_stage", lambda step: SimpleNamespace(task_module=step.kind))
    return Step.model_construct(name="lab", kind="python", key="0" * 64, settings=settings)


@pytest.mark.parametrize("error", [SystemExit, KeyError, ValueError, StepError, Stubborn])
def test_a_task_that_ends_with_a_secret_ends_with_stars(monkeypatch, error, capsys, tmp_path):
    monkeypatch.setenv("LAB", SECRET)

    def run():
        raise failing(error(f"last words: {SECRET}"))

    step = step_of(monkeypatch, run, token="${env:LAB}")
    context = Context({}, tmp_path, tmp_path, 0)
    with capture_output(tmp_path / "log", False, find_secrets(step.settings)), pytest.raises(StepError) as raised:
        task_run.run_task(step, context, Layout(tmp_path), [])
    trace = "".join(traceback.format_exception(raised.value))
    assert SECRET not in trace + (tmp_path / "log").read_text() + capsys.readouterr().err
    assert "***" in str(raised.value)
    assert "***" in (tmp_path / "log").read_text()


def test_names_of_curves(tmp_path):
    seen = []
    context = Context({}, tmp_path, tmp_path, 0, on_progress=seen.append, redact=Redactor([SECRET]).value)
    context.log(3, **{f"loss/{SECRET}": 0.25})
    point = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (point["step"], point["loss/***"]) == (3, 0.25)
