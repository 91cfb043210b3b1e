"""Environment `repo`: commands, tests in the sandbox, its problems and its expert."""

import json

import numpy as np
import pytest

from learning.environments.lookup_environment import build_environment
from learning.environments.protocol import HasStateName, Savable
from learning.lookup import bind
from learning.sandbox.repositories import is_value, parse_install, run_tests
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse, TeacherUse

FILES = {"src/ops.py": "def add(a, b): return a - b\n", "notes.txt": "one\n"}
TESTS = {"ops.add(2, 3)": 5, "ops.add(0, 0)": 0}
TASK = {"files": FILES, "tests": TESTS, "install": "path src"}
RIGHT = "edit src/ops.py 1 def add(a, b): return a + b"


def begin(about, **options):
    row = {"id": "r", "prompt": [], "metadata": json.dumps(about)}
    return build_environment(EnvUse.model_validate({"use": "repo", **options}), {}).begin(row, 0)


def test_a_repository_is_looked_at_repaired_and_submitted():
    episode = begin(TASK)
    said = [episode.step(action) for action in ("ls", "cat src/ops.py", "test", RIGHT, "test", "submit")]
    assert [one.observation for one in said] == [
        "notes.txt\nsrc/ops.py",
        "1 def add(a, b): return a - b",
        "ops.add(2, 3) is -1, not 5\n1 of 2 pass",
        "saved",
        "2 of 2 pass",
        "",
    ]
    assert [(one.done, one.reward, one.ok) for one in said] == [(False, 0.0, True)] * 5 + [(True, 1.0, True)]


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        ([], 0.0),
        ([RIGHT], 1.0),
        (["edit src/ops.py 1 def add(a, b): return 5"], 0.0),
        (["write src/ops.py x = 1"], 0.0),
    ],
)
def test_all_tests_have_to_pass(actions, reward):
    episode = begin(TASK)
    assert [episode.step(action).ok for action in actions] == [True] * len(actions)
    assert episode.step("submit").reward == reward


def test_hidden_tests_count_and_are_not_shown():
    by_heart = "edit src/ops.py 1 def add(a, b): return {2: 5, 0: 0}[a]"
    about = {**TASK, "hidden": {"ops.add(4, 4)": 8}}
    episode = begin(about)
    assert [episode.step(action).observation for action in (by_heart, "test")] == ["saved", "2 of 2 pass"]
    assert episode.step("submit").reward == 0.0
    shared = begin(about, partial=True)
    shared.step(by_heart)
    assert shared.step("submit").reward == pytest.approx(2 / 3)
    chosen = begin({**about, "judged": list(TESTS)})
    chosen.step(by_heart)
    assert chosen.step("submit").reward == 1.0


def test_an_edit_can_be_the_submission():
    episode = begin(TASK, submit_on_edit=True)
    assert not episode.step("edit src/ops.py 7 x").done
    assert not episode.step("cat src/ops.py").done
    end = episode.step(RIGHT)
    assert (end.done, end.reward) == (True, 1.0)


@pytest.mark.parametrize(
    "action",
    [
        *(
            "",
            "rm -rf /",
            "cat",
            "cat /etc/passwd",
            "edit",
            "edit src/ops.py",
            "edit src/ops.py 0 x",
            "replace src/ops.py 1 x => y",
            "replace src/ops.py 1 a",
            "edit no.py 1 x",
        ),
        *("edit src/ops.py ٣ x", "edit src/ops.py 99999999999 x", "write ../x.py x", "write /x.py x", "write a//b x"),
        *("write src x", "write src/ops.py/x.py x", f"write {'a' * 999} x", f"write big.py {'x' * 70_000}", "\ud800"),
    ],
)
def test_what_cannot_be_done_changes_nothing(action):
    episode = begin(TASK)
    outcome = episode.step(action)
    assert (outcome.ok, outcome.done, outcome.reward) == (False, False, 0.0)
    assert 0 < len(outcome.observation) < 500
    assert episode.files == FILES


def test_texts_of_several_lines_and_their_indentation_stay():
    episode = begin(TASK)
    episode.step("write src/new.py\ndef f():\n    return 1")
    episode.step("edit src/new.py 2     return 2\n    # no")
    episode.step("edit notes.txt 2 two")
    episode.step("replace src/new.py 2 2 => 3")
    assert episode.files["src/new.py"] == "def f():\n    return 3\n    # no\n"
    assert episode.files["notes.txt"] == "one\ntwo\n"


@pytest.mark.parametrize(
    ("code", "got"),
    [
        ("def add(a, b): return x", "NameError"),
        ("def add(a, b)", "SyntaxError"),
        ("raise SystemExit", "SystemExit"),
        ("import os, json\nos.write(3, json.dumps([[True, '5'], [True, '0']]).encode())\ndef add(a, b): return a", ""),
        ("import os, json\nos.write(3, json.dumps([[True, '5']]).encode())\nos._exit(0)", ""),
        ("def add(a, b): return open('/etc/passwd').read()", "PermissionError"),
        ("def add(a, b):\n    while True: pass", "time"),
        ("import socket\ndef add(a, b): return socket.create_connection(('127.0.0.1', 1))", "PermissionError"),
    ],
)
def test_hostile_code_passes_no_test(code, got):
    checks = run_tests({"ops.py": code}, {"ops.add(2, 3)": 5, "ops.add(0, 0)": 1}, seconds=0.8)
    assert not any(check.passed for check in checks.values())
    assert got in checks["ops.add(2, 3)"].got


def test_install_recipes_make_modules_and_packages_importable():
    files, packages = (
        {"lib/pkg/ops.py": "import tens\ndef ten(): return tens.TEN, [1]\n"},
        {"tens": {"tens.py": "TEN = 10\n"}},
    )
    tests = {"pkg.ops.ten()": [10, [1]]}
    passed = {
        install: run_tests(files, tests, install=install, packages=packages)["pkg.ops.ten()"].passed
        for install in (
            "path lib\nwith tens",
            "path lib",
            "with tens",
            "path .; with tens",
            "pip install tens",
            "with x",
        )
    }
    assert [install for install, ok in passed.items() if ok] == ["path lib\nwith tens"]


def test_install_recipes_that_leave_the_repository_are_refused():
    assert parse_install("path src; with a\n\nwith b") == (["src"], ["a", "b"])
    for text in ("path /etc", "path ../x", "path", "with", "run x"):
        with pytest.raises(ValueError, match="is no `path FOLDER` or `with PACKAGE`"):
            parse_install(text)


def test_values_are_compared_as_json_has_them():
    assert is_value("(1, [2])", [1, [2]])
    assert is_value("5.0", 5)
    assert not any(is_value(text, 1) for text in ("True", "'1'", "[1]", "x", ""))
    assert not is_value("1", True)
    assert not is_value("[" * 5000 + "]" * 5000, [])


def test_results_of_equal_files_are_remembered(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "learning.environments.repo.run_tests", lambda *given, **how: calls.append(1) or run_tests(*given, **how)
    )
    world = build_environment(EnvUse.model_validate({"use": "repo", "remember": True}), {})
    row = {"id": "r", "prompt": [], "metadata": json.dumps(TASK)}
    for _ in range(2):
        episode = world.begin(row, 0)
        assert episode.step("test").observation.endswith("1 of 2 pass")
        episode.step(RIGHT)
        assert episode.step("submit").reward == 1.0
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({}, "its metadata need `files`"),
        ({"files": FILES}, "it has 0 `tests`"),
        ({"files": FILES, "tests": {"add(2, 3)": 5}}, "does not begin with a module"),
        ({**TASK, "judged": ["x"]}, "`x` is judged"),
    ],
)
def test_rows_without_a_task_are_refused(about, message):
    with pytest.raises(StepError, match=message):
        begin(about)


@pytest.mark.parametrize("modules", [1, 2])
def test_the_expert_repairs_every_problem_from_any_saved_state(modules):
    use = ProblemsUse.model_validate(
        {"use": "repositories", "size": 2, "split": "train", "modules": modules, "seed": 5}
    )
    teacher = bind(TeacherUse.model_validate("repo_fixer"))
    world = build_environment(EnvUse.model_validate({"use": "repo", "remember": True}), {})
    for row in bind(use)():
        one, shown = world.begin(row, 0), row
        for _ in range(9):
            assert isinstance(one, Savable)
            assert isinstance(one, HasStateName)
            other = world.begin(row, 0)
            other.restore(json.loads(json.dumps(one.save())))
            assert (other.state_name, other.save()) == (one.state_name, one.save())
            action = teacher(shown, np.random.default_rng(0))
            outcome = one.step(action)
            assert other.step(action) == outcome
            said = [{"role": "assistant", "content": action}, {"role": "user", "content": outcome.observation}]
            shown = shown | {"prompt": [*shown["prompt"], *said]}
            if outcome.done:
                break
        assert outcome.reward == 1.0


def test_problems_are_held_out_and_as_hard_as_asked_for():
    def make(**options):
        return bind(ProblemsUse.model_validate({"use": "repositories", "size": 40, **options}))()

    train, test = make(split="train", seed=1), make(split="test", seed=2)
    assert not {row["id"] for row in train} & {row["id"] for row in test}
    hinted = {row["metadata"] for row in make(split="train", seed=2, shown=True, hinted=True)}
    assert hinted & {row["metadata"] for row in make(split="train", seed=2)} == hinted, "the prompt does not matter"
    assert not hinted & {row["metadata"] for row in make(split="test", seed=2)}
    assert make(split="train", seed=1) == train
    assert [row["family"] for row in train[:4]] == ["repo1", "repo2", "repo1", "repo2"]
    for row in train:
        about = json.loads(row["metadata"])
        pairs = zip(
            "".join(about["files"].values()).split("\n"), "".join(about["gold"].values()).split("\n"), strict=True
        )
        assert sum(a != b for a, b in pairs) == int(row["family"][-1])
    named = make(split="train", named=True, shown=True, seed=3)[0]
    text = named["prompt"][0]["content"]
    assert text.startswith("fix ")
    assert json.loads(named["metadata"])["files"]["ops.py"].strip() in text
