"""Every family of reasoning-gym reads hostile answers: none is executed, none ends the run, time is bounded.

The server runs with an audit hook in its children that spoils what they say once something of an answer is executed.
"""

import json
import time

import pytest

from learning.reasoning_gym import families as gym
from learning.reasoning_gym import verifiers
from learning.rewards.answers import scored
from learning.sandbox.run import available
from tests.security.gym_rows import made
from tests.security.hostile_answers import MARK, hostile

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))
WATCHED = f"""
import os, sys
from learning.reasoning_gym import verifier_server
from learning.reasoning_gym import grammar as gym_grammar

server = os.getpid()
DEEDS = (
    "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill", "os.mkdir", "os.putenv", "os.remove",
    "subprocess", "socket", "ctypes", "pty",
)

def names(code):
    yield from code.co_names
    for const in code.co_consts:
        yield from names(const) if hasattr(const, "co_code") else [repr(const)]

def watch(event, given):
    if os.getpid() == server or gym_grammar.allowed is None:
        return
    written = event == "open" and isinstance(given[2], int) and given[2] & 3
    if written or event.startswith(DEEDS) or event == "exec" and any({MARK!r} in name for name in names(given[0])):
        os.write(3, b"executed")

sys.addaudithook(watch)
verifier_server.main(int(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.fixture
def watched(monkeypatch):
    verifiers.stop()
    monkeypatch.setattr(verifiers, "COMMAND", ("-c", WATCHED))
    yield
    verifiers.stop()


def attack(of, tmp_path, count):
    """Rows and `count` hostile answers to each."""
    rows, texts = [], []
    for family, one in of.items():
        mine = hostile(count, f"{family}-{count}", str(tmp_path / "made"), one["right"])
        rows += [one["row"]] * len(mine)
        texts += mine
    return rows, texts


def check(of, tmp_path, count):
    """Read `count` attacks by every family, twice the same, and find that nothing came of them."""
    rows, texts = attack(of, tmp_path, count)
    begun = time.monotonic()
    scores = scored(rows, texts)
    seconds = time.monotonic() - begun
    assert list(tmp_path.iterdir()) == [], "an answer was executed"
    assert all(score is None or 0 <= score <= 1 for score in scores)
    right = [one["right"] for one in of.values()]
    again = scored([one["row"] for one in of.values()], right)
    assert again == [one["scores"][0] for one in of.values()], "what was read before changes nothing"
    return rows, texts, scores, seconds


def test_every_family_reads_hostile_answers(watched, tmp_path):
    rows, texts, _, seconds = check(made(), tmp_path, 16)
    assert len(rows) == 16 * 105
    assert seconds < 300
    scores = verifiers.judge(rows[::10], [text.strip() for text in texts[::10]])
    assert {one.why for one in scores} <= {"", "length", "time", "killed", *RAISED}
    assert [one.score for one in scores if one.why == ""] != []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_family_reads_200_hostile_answers(watched, tmp_path):
    rows, texts, scores, seconds = check(made(), tmp_path, 200)
    whys = {}
    for one in verifiers.judge(rows, [text.strip() for text in texts]):
        whys[one.why] = whys.get(one.why, 0) + 1
    print(
        json.dumps({"answers": len(rows), "seconds": round(seconds, 1), "unscorable": scores.count(None), "why": whys})
    )
    assert set(whys) <= {"", "length", "time", "killed", *RAISED}
    assert len(rows) == 200 * (len(gym.families()) - 1)


RAISED = (
    "ValueError",
    "TypeError",
    "KeyError",
    "OverflowError",
    "AttributeError",
    "IndexError",
    "RecursionError",
    "MemoryError",
)
"""What the library's verifiers let through; an answer that is executed would end the line that says so."""


def test_the_watch_sees_what_is_executed(watched, monkeypatch, tmp_path):
    """Without the replaced evaluators the same hook spoils the verdict: the test above can fail."""
    undone = WATCHED.replace("server = os", "gym_grammar.replace_evaluators = lambda: None\nserver = os")
    monkeypatch.setattr(verifiers, "COMMAND", ("-c", undone))
    row = made("spiral_matrix")["spiral_matrix"]["row"]
    texts = [f"open('{tmp_path}/{MARK}', 'w')", f"setattr(__import__('sys'), '{MARK}', 1)", "[1, 2]"]
    scores = verifiers.judge([row] * 3, texts)
    assert [(one.score, one.why) for one in scores] == [(None, "ended"), (None, "ended"), (0.0, "")]
    assert list(tmp_path.iterdir()) == [], "the sandbox holds by itself"
