"""Environment `ml`: programs, submissions, boards, its problems and its agent."""

import json

import numpy as np
import pytest

from learning.environments.lookup_environment import build_environment
from learning.environments.ml import read_submission
from learning.environments.protocol import HasStateName, Savable
from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import EnvUse, ProblemsUse, TeacherUse

ABOUT = {
    "info": {"data": "d"},
    "files": {"test.csv": "x\n1\n"},
    "answers": ["2"],
    "metric": "mae",
    "leaderboard": [0.5, 1],
}


def begin(about=ABOUT, **options):
    row = {"id": "r", "prompt": [], "metadata": json.dumps(about)}
    return build_environment(EnvUse.model_validate({"use": "ml", **options}), {}).begin(row, 0)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("open('submission.csv', 'w').write('nan')", "no number of usual size"),
        ("open('submission.csv', 'w').write('1e200')", "no number of usual size"),
        ("open('submission.csv', 'w').write('x')", "could not convert"),
        ("open('submission.csv', 'w').write('1\\n2\\n3')", "3 lines, not 1"),
        ("open('submission.csv', 'w').write('2' * 70000)", "more than 65536 bytes"),
        ("while True: pass", "time"),
        ("pass", "there is no submission.csv"),
        ("raise SystemExit(3)", "error"),
        ("import socket; socket.socket()", "error: PermissionError"),
    ],
)
def test_hostile_programs_earn_nothing(code, shown):
    outcome = begin(seconds=1.0).step(f"execute_code {code}")
    assert (outcome.reward, outcome.ok, outcome.done) == (0.0, False, False)
    assert shown in outcome.observation


def test_programs_begin_with_the_prelude_and_leave_nothing():
    episode = begin({**ABOUT, "prelude": "value = 2\n"}, remember=True)
    write = "open('submission.csv', 'w').write(str(value))"
    assert episode.step(f"execute_code\n{write}").reward == 1.0
    assert episode.step("validate_code print(open('submission.csv').read())").ok is False
    assert episode.step("execute_code pass").observation == "there is no submission.csv"


@pytest.mark.parametrize("action", ["", "help", "execute", "request_info", "request_info x", "submitted"])
def test_other_turns_say_what_can_be_done(action):
    outcome = begin().step(action)
    assert (outcome.ok, outcome.done, outcome.reward) == (False, False, 0.0)
    assert "actions:" in outcome.observation or "topics: data" in outcome.observation


def test_a_submission_may_have_a_header_and_further_columns():
    assert read_submission(b'id,y\n1,2\n2,"3"\n', 2) == ["2", "3"]
    assert read_submission(b"2\r\n\n3", 2) == ["2", "3"]
    for wrong in (b"", b"1\n", b"1\n2\n3\n4\n"):
        with pytest.raises(ValueError, match="lines, not 2"):
            read_submission(wrong, 2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"files": None}, "its metadata need `files`"),
        ({"leaderboard": []}, "its metadata need `files`"),
        ({"metric": "auc"}, "metric `auc`; there is: accuracy, rmse"),
        ({"answers": ["yes"]}, "its `answers` do not suit mae"),
    ],
)
def test_rows_without_a_competition_are_refused(changed, message):
    with pytest.raises(StepError, match=message):
        begin({**ABOUT, **changed})


def test_the_agent_knows_the_right_method_from_any_saved_state():
    use = ProblemsUse.model_validate({"use": "competitions", "size": 3, "split": "train", "seed": 5})
    env = {"use": "ml", "remember": True}
    world, teacher = build_environment(EnvUse.model_validate(env), {}), bind(TeacherUse.model_validate("competitor"))
    for row in bind(use)():
        one, shown, earned = world.begin(row, 0), row, 0.0
        for _ in range(5):
            assert isinstance(one, Savable)
            assert isinstance(one, HasStateName)
            other = world.begin(row, 0)
            other.restore(json.loads(json.dumps(one.save())))
            assert (other.state_name, other.save()) == (one.state_name, one.save())
            action = teacher(shown, np.random.default_rng(0))
            outcome = one.step(action)
            assert other.step(action) == outcome
            earned += outcome.reward
            said = [{"role": "assistant", "content": action}, {"role": "user", "content": outcome.observation}]
            shown = shown | {"prompt": [*shown["prompt"], *said]}
            if outcome.done:
                break
        assert outcome.done
        assert earned == 1.0


def test_problems_are_held_out_and_of_three_kinds():
    def make(**options):
        return bind(ProblemsUse.model_validate({"use": "competitions", "size": 30, **options}))()

    train, test = make(split="train", seed=1), make(split="test", seed=2)
    assert not {row["id"] for row in train} & {row["id"] for row in test}
    assert make(split="train", seed=1) == train
    assert [row["family"] for row in train[:3]] == ["regression", "classification", "majority"]
    for row in train:
        about = json.loads(row["metadata"])
        assert len(about["leaderboard"]) == 10
        assert len(about["files"]["train.csv"].splitlines()) - 1 + len(about["answers"]) == 60
    assert make(split="train", columns=5)[0]["metadata"].count("columns a b c d e,") == 1
