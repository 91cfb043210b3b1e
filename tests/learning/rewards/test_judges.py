"""Judges behind a server: what they say is read, counted and asked once; a bad answer is no verdict."""

import json

import pytest

from learning.api.response_store import ResponseStore
from learning.api.spending import SpendingAccount
from learning.evaluation.sampled_answers import compute_weighted_scores
from learning.lookup import bind
from schemas.errors import StepError
from schemas.use import RewardUse
from tests.teacher_server import Teacher, serving


def reward(address, **more):
    endpoint = {"base_url": address, "model": "m", "name": "judge", "backoff": 0.001, "max_backoff": 0.002}
    return bind(RewardUse.model_validate({"use": "judges.endpoint", "endpoint": endpoint, **more}), "rewards.0")


def rows(number):
    prompt = [{"role": "user", "content": "2 + 2"}]
    return [{"id": str(i), "prompt": prompt, "answer": "4", "family": "f", "metadata": ""} for i in range(number)]


@pytest.fixture
def account(tmp_path):
    return SpendingAccount(tmp_path / "remote", "a-step")


SAID = {"good": "I think 8", "better": "9.5", "odd": "no number", "high": "11", "none": None, "": "Score: 3 of 10: 4"}


def judge(body):
    return SAID[body["messages"][-1]["content"].partition("Answer: ")[2].partition("\n")[0]], "stop"


def test_verdicts_are_read_and_a_bad_answer_is_none(account):
    with serving(Teacher(judge)) as address:
        scores = reward(address).ask(0, {"rows": rows(6), "completions": list(SAID), "account": account})
        floor = reward(address, unparsable=0.0).ask(0, {"rows": rows(6), "completions": list(SAID), "account": account})
    assert scores == [0.8, 0.95, None, None, None, 0.4]
    assert floor == [0.8, 0.95, 0.0, 0.0, 0.0, 0.4]


def test_a_refused_question_has_no_verdict_and_others_have(account):
    teacher = Teacher(judge, {"Problem: 2 + 2\nAnswer: better\nRate the answer from 0 to 10:": ["refuse"] * 9})
    with serving(teacher) as address:
        scores = reward(address).ask(0, {"rows": rows(2), "completions": ["good", "better"], "account": account})
    assert scores == [0.8, None]


VOTES = {"clear": ["7", "3", "7"], "tied": ["7", "3", "x"], "one": ["x", "x", "2"], "nobody": ["x", "y", "12"]}


@pytest.mark.parametrize(
    ("verdict", "expected"), [("majority", [0.7, None, 0.2, None]), ("mean", [17 / 30, 0.5, 0.2, None])]
)
def test_several_votes(account, verdict, expected):
    def answer(body):
        return VOTES[body["messages"][-1]["content"].partition("Answer: ")[2].partition("\n")[0]][body["seed"]], "stop"

    with serving(Teacher(answer)) as address:
        how = {"votes": 3, "temperature": 1.0, "verdict": verdict}
        scores = reward(address, **how).ask(0, {"rows": rows(4), "completions": list(VOTES), "account": account})
    assert scores == [None if v is None else pytest.approx(v) for v in expected]


def test_equal_questions_are_paid_once_now_and_later(account):
    teacher = Teacher(judge)
    with serving(teacher) as address:
        for _ in range(2):
            scores = reward(address).ask(0, {"rows": rows(4), "completions": ["good"] * 4, "account": account})
            assert scores == [0.8] * 4
    assert len(teacher.paid) == 1


def test_the_rubric_is_the_recipes_own(account):
    teacher = Teacher(lambda body: ("<score>0.25</score> of 1", "stop"))
    with serving(teacher) as address:
        rubric = {
            "system": "You grade.",
            "template": "Is {completion} what {answer} says of {prompt}?",
            "high": 1.0,
            "pattern": "<score>(.*?)</score>",
            "max_completion_length": 9,
        }
        scores = reward(address, **rubric).ask(0, {"rows": rows(1), "completions": ["{answer} 4"], "account": account})
    assert scores == [0.25]
    (body,) = teacher.bodies
    assert body["messages"] == [
        {"role": "system", "content": "You grade."},
        {"role": "user", "content": "Is {answer} 4 what 4 says of 2 + 2?"},
    ]
    assert (body["max_tokens"], body["temperature"]) == (9, 0.0)


def test_a_judge_among_other_rewards(account):
    with serving(Teacher(judge)) as address:
        rewards = [reward(address), bind(RewardUse(use="formats.matches", pattern="g.*"), "rewards.1")]
        scores = compute_weighted_scores(rewards, [0.5, 1.0], rows(3), ["good", "better", "odd"], account)
    assert scores == [0.5 * 0.8 + 1.0, 0.5 * 0.95, None]


def test_several_votes_without_temperature_are_refused(account):
    with pytest.raises(StepError, match="several `votes` at temperature 0 are all equal"):
        reward("http://127.0.0.1:1/v1", votes=3).ask(0, {"rows": rows(1), "completions": ["a"], "account": account})


def test_what_a_judge_cost_is_noted_for_the_step(account):
    teacher = Teacher(judge)
    with serving(teacher) as address:
        reward(address).ask(0, {"rows": rows(2), "completions": ["good", "better"], "account": account})
    spent = ResponseStore(account.folder).spent("a-step")
    assert (spent.input_tokens, spent.output_tokens, spent.charged) == (*teacher.paid_tokens, 0)
    assert all(json.loads(question)["model"] == "m" for _, question in teacher.paid)
