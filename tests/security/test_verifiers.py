"""Verifiers of reasoning-gym read answers in processes that guard themselves; nothing that they do reaches the run."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from learning.problems.generators import reasoning_gym
from learning.reasoning_gym import parsers as gym_parsers
from learning.reasoning_gym import verifiers
from learning.rewards.answers import exact, scored
from learning.sandbox.run import available
from schemas.errors import StepError
from tests.security.gym_rows import made

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))
EVALUATING = (
    "string_insertion",
    "spiral_matrix",
    "binary_matrix",
    "n_queens",
    "puzzle24",
    "countdown",
    "simple_integration",
    "intermediate_integration",
    "polynomial_multiplication",
)
UNGUARDED = """
import sys
from learning.reasoning_gym import verifier_server
from learning.reasoning_gym import grammar as gym_grammar
{change}
verifier_server.main(int(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.fixture
def fresh():
    """A server is started when it is needed, and gone afterwards."""
    verifiers.stop()
    yield
    verifiers.stop()


def one(family):
    return made()[family]["row"]


def changed(monkeypatch, change):
    """Servers start with a change to their modules."""
    verifiers.stop()
    monkeypatch.setattr(verifiers, "COMMAND", ("-c", UNGUARDED.format(change=change)))


@pytest.mark.parametrize("family", EVALUATING)
def test_no_answer_is_evaluated_and_the_run_goes_on(family, tmp_path):
    row = one(family)
    texts = [
        f"__import__('os').system('id > {tmp_path}/f')",
        f"open('{tmp_path}/f', 'w')",
        "exit()",
        "quit(0)",
        "9**9**9**9",
        "__import__('os')._exit(0)",
        "raise SystemExit",
        "[[[[[[[0]*99]*99]*99]*99]*99]*99]*99",
        "(" * 100_000,
    ]
    begun = time.monotonic()
    assert set(scored([row] * len(texts), texts)) <= {0.0, 0.01, 0.05}
    assert time.monotonic() - begun < 60
    assert list(tmp_path.iterdir()) == []
    assert scored([row], [row["answer"]]) == [1.0]


def test_where_something_is_evaluated_after_all_the_sandbox_holds_it(monkeypatch, fresh, tmp_path):
    """With the grammar off, as for a verifier of a release that was not read."""
    changed(monkeypatch, "gym_grammar.replace_evaluators = lambda: None")
    secret = tmp_path / "secret"
    secret.write_text("x")
    row = one("spiral_matrix")
    right = repr(row["answer"].split())
    attempts = {
        f"__import__('os').system('id > {tmp_path}/f') or 1": 0.0,
        f"open('{tmp_path}/f', 'w')": 0.0,
        "open('f', 'w')": 0.0,
        f"{right} if __import__('os').path.exists('/') and open('{secret}').read() else 1": 0.0,
        f"{right} if __import__('os').fork() else 1": 0.0,
        f"{right} if __import__('socket').socket() else 1": 0.0,
        f"{right} if __import__('os').environ else 1": 0.0,
        f"{right} if __import__('os').kill(__import__('os').getppid(), 9) is None else 1": 0.0,
        "[0] * 10**10": 0.0,
        right: 0.1,
    }
    verdicts = verifiers.judge([row] * len(attempts), list(attempts))
    assert [(v.score, v.why) for v in verdicts] == [(score, "") for score in attempts.values()]
    forged = verifiers.judge(
        [row] * 4, ["exit()", "__import__('os')._exit(0)", "__import__('os').write(3, b'9')", right]
    )
    assert [(v.score, v.why) for v in forged] == [(None, "SystemExit"), (None, "ended"), (None, "ended"), (0.1, "")]
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(
    ("family", "text", "why"),
    [
        ("prime_factorization", "I do not know.", "ValueError"),
        ("boxnet", "0", "TypeError"),
        ("coin_flip", "1e999", "OverflowError"),
        ("game_of_life", "{}", "KeyError"),
    ],
)
def test_a_verifier_that_fails_leaves_its_sample_unscorable(family, text, why):
    row = one(family)
    right = row["answer"] or "[]"
    assert scored([row] * 3, [right, text, right])[1] is None
    assert None not in scored([row] * 2, [right, right])
    assert [v.why for v in verifiers.judge([row], [text])] == [why]


def test_scores_are_those_of_the_library_for_every_family():
    of = made()
    assert len(of) == 105
    rows = [given["row"] for given in of.values() for _ in given["answers"]]
    texts = [text for given in of.values() for text in given["answers"]]
    expected = [score for given in of.values() for score in given["scores"]]
    got = scored(rows, texts)
    differ = [
        (row["family"], text, want, ours)
        for row, text, want, ours in zip(rows, texts, expected, got, strict=True)
        if want != ours
    ]
    assert differ == []
    assert sum(score == 1.0 for score in got) > 105


def test_what_is_not_a_number_is_not_right():
    assert scored([one("complex_arithmetic")] * 2, ["nan", "nan+nanj"]) == [0.0, 0.0]
    row = one("number_sorting")
    count = row["answer"].count(",") + 1
    assert scored([row] * 2, ["[" + ", ".join(["NaN"] * count) + "]", str(["nan"] * count)]) == [0.0, 0.0]
    assert scored([row], [row["answer"]]) == [1.0]


def test_only_verifiers_that_were_read_read_in_the_trainer(monkeypatch, fresh):
    row = one("gcd")
    answers = [row["answer"], f"x {row['answer']}", "no"]
    here = scored([row] * 3, answers)
    assert verifiers.current == [], "no server for a comparison"
    name = "reasoning_gym.dataset:ProceduralDataset.score_answer"
    monkeypatch.setitem(gym_parsers.COMPARE_ONLY, name, "another release")
    gym_parsers.family_compares_only.cache_clear()
    try:
        assert scored([row] * 3, answers) == here
        assert len(verifiers.current) == 1
    finally:
        gym_parsers.family_compares_only.cache_clear()
    assert here == [1.0, pytest.approx(len(row["answer"]) / len(answers[1])), 0.0]


def test_which_families_are_read_in_the_trainer():
    """The installed release is the one that was read; no verifier that evaluates or converts is among them."""
    from learning.reasoning_gym.families import families

    here = {family for family in families() if gym_parsers.family_compares_only(family)}
    assert len(here) == 40
    assert not here & {*EVALUATING, "prime_factorization", "chain_sum", "boxnet", "coin_flip", "codeio", "composite"}
    assert {"gcd", "ab", "zebra_puzzles", "maze"} <= here


def test_exact_starts_no_server(fresh):
    rows = reasoning_gym(family="chain_sum", size=5, split="train", seed=3)
    assert exact(rows, [row["answer"] for row in rows]) == [1.0] * 5
    assert verifiers.current == []


def test_equal_answers_have_equal_scores_in_any_company():
    row, other = one("countdown"), one("word_sorting")
    texts = [row["answer"], "1+1", "(" * 9, "exit()", *map(str, range(20))]
    alone = [scored([row], [text])[0] for text in texts]
    assert scored([row] * len(texts), texts) == alone
    mixed = scored([row, other] * len(texts), [text for text in texts for _ in range(2)])
    assert mixed[::2] == alone
    assert scored([row] * len(texts), texts[::-1]) == alone[::-1]


def test_time_is_bounded_and_its_neighbours_are_scored(monkeypatch, fresh):
    changed(monkeypatch, "verifier_server.COMPUTING = 1")
    row = one("rubiks_cube")
    endless = " ".join(["R2"] * 300_000)
    verdicts = verifiers.judge([row] * 3, ["R", endless, "R"])
    assert [v.why for v in verdicts] == ["", "killed", ""]
    assert verdicts[0] == verdicts[2]
    assert verdicts[1].score is None
    changed(monkeypatch, "verifier_server.WALL = 0.5")
    assert [v.why for v in verifiers.judge([row], [endless])] == ["time"]


def test_memory_is_bounded(monkeypatch, fresh):
    """The verifier repeats a move as often as the answer says; a list of 10¹⁰ moves does not come to be."""
    assert verifiers.judge([one("rubiks_cube")], ["R9999999999"])[0].score == 0.01
    server = psutil.Process(verifiers.current[0].process.pid)
    assert server.memory_info().rss < 600 * 2**20


def test_a_text_of_more_than_a_megabyte_is_not_scored(fresh):
    row = one("chain_sum")
    verdicts = verifiers.judge([row] * 2, ["1" * (verifiers.MAX_TEXT + 1), row["answer"]])
    assert [(v.score, v.why) for v in verdicts] == [(None, "length"), (1.0, "")]


def test_the_server_sees_no_secret(monkeypatch, fresh):
    monkeypatch.setenv("POSTTRAIN_TEST_TOKEN", "very-secret")
    scored([one("countdown")], ["1"])
    server = psutil.Process(verifiers.current[0].process.pid)
    assert "POSTTRAIN_TEST_TOKEN" not in server.environ()
    assert b"very-secret" not in Path(f"/proc/{server.pid}/environ").read_bytes()
    assert not [path for path in (file.path for file in server.open_files()) if not path.startswith("/dev")]


def test_one_server_serves_every_thread_and_outlives_the_one_that_started_it(fresh):
    row = one("countdown")
    scores = []
    threads = [threading.Thread(target=lambda: scores.append(scored([row] * 9, [row["answer"]] * 9))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scores == [[1.0] * 9] * 4
    (first,) = verifiers.current
    assert scored([row], [row["answer"]]) == [1.0]
    assert verifiers.current == [first]
    assert first.process.poll() is None


def test_a_server_that_is_gone_is_started_again(fresh):
    row = one("countdown")
    scored([row], ["1"])
    first = verifiers.current[0].process
    first.kill()
    first.wait()
    assert scored([row], [row["answer"]]) == [1.0]
    assert verifiers.current[0].process.pid != first.pid


def test_a_server_that_cannot_live_is_an_error_with_its_words(monkeypatch, fresh):
    changed(monkeypatch, "raise SystemExit('no such luck')")
    with pytest.raises(StepError, match=r"ended 3 times without an answer: no such luck"):
        scored([one("countdown")], ["1"])


def test_without_guards_no_verifier_reads_anything(monkeypatch, fresh):
    monkeypatch.setattr(verifiers, "available", lambda: "Landlock: Function not implemented")
    with pytest.raises(StepError, match=r"read texts of models in the sandbox alone: Landlock: Function not"):
        scored([one("countdown")], ["1"])
    assert verifiers.current == []


def test_rows_that_the_library_did_not_make_are_refused():
    row = one("countdown")
    with pytest.raises(StepError, match="does not say how reasoning-gym made the problem"):
        scored([row | {"metadata": "{}"}], ["1"])
    with pytest.raises(StepError, match="does not say how"):
        scored([row | {"metadata": "[1]"}], ["1"])
    with pytest.raises(StepError, match="the installed reasoning-gym makes another problem"):
        scored([row | {"answer": "1 + 1"}], ["1"])


def test_a_signal_is_handled_while_a_verifier_works(fresh):
    """The handler of a step raises; nothing of the server stays."""

    class Stop(BaseException):
        pass

    def stop(number, frame):
        raise Stop

    row = one("rubiks_cube")
    scored([row], ["R"])
    server = verifiers.current[0].process
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(Stop):
            scored([row], [" ".join(["R2"] * 300_000)])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert server.poll() is not None
    assert verifiers.current == []
    assert scored([row], ["R"]) == scored([row], ["R"])


@pytest.mark.parametrize("how", ["returns", "is killed"])
def test_the_server_ends_with_its_parent(how):
    script = """
        import os, signal, sys
        from learning.problems.generators import reasoning_gym
        from learning.rewards.answers import scored
        from learning.reasoning_gym import verifiers
        rows = reasoning_gym(family="countdown", size=1, split="train", seed=3)
        scored(rows, ["1"])
        print(verifiers.current[0].process.pid, flush=True)
        if sys.argv[1] == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), how], capture_output=True, text=True, env=environment
    )
    assert done.returncode == (0 if how == "returns" else -signal.SIGKILL), done.stderr
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(30)
