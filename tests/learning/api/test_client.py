"""Questions to a real server that fails, throttles and hangs: all are answered, none is paid twice."""

import asyncio
import ctypes
import json
import re
import threading
import time
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learning.api.client import ask
from learning.api.concurrency_limiter import Cap
from learning.api.rate_limiter import RateLimiter
from learning.api.requests import Answer, Failed, make_chat_question
from learning.api.response_store import ResponseStore, Spent
from learning.api.spending import SpendingAccount
from learning.api.transport import parse_response
from schemas.endpoint import Endpoint
from schemas.errors import StepError
from tests.teacher_server import Teacher, serving
from tests.waiting import wait_for

FAILURES = ["500", "502", "429", "408", "hang", "drop", "malformed", "odd", "truncated", "lost"]
KEY = "sk-never-to-be-seen"


def endpoint(address, **more):
    fast = {"timeout": 30.0, "backoff": 0.001, "max_backoff": 0.002, "max_concurrency": 4, "max_retries": 6}
    return Endpoint(base_url=address, model="m", **{**fast, "name": "teacher", **more})


def questions(number=4, tokens=5):
    messages = [{"role": "user", "content": f"question {i}"} for i in range(number)]
    return [make_chat_question([one], 0, temperature=1.0, max_tokens=tokens) for one in messages]


def texts(asked):
    return [answer.text if isinstance(answer, Answer) else answer for answer in asked.answers]


@pytest.fixture
def account(tmp_path):
    return SpendingAccount(tmp_path / "remote", "a-step")


def own_answer(body):
    return f"answer to {body['messages'][-1]['content']}", "stop"


@pytest.mark.parametrize("word", FAILURES)
def test_every_failure_that_may_pass_is_overcome_and_paid_once(account, word):
    teacher = Teacher(own_answer, {"question 1": [word, word]})
    with serving(teacher) as address:
        asked = ask(endpoint(address, timeout=2.0 if word == "hang" else 30.0), account, questions())
    assert texts(asked) == [f"answer to question {i}" for i in range(4)]
    assert set(teacher.paid_questions.values()) == {1}
    assert teacher.met == {word: 2, "well": 4}
    names = {
        "hang": "timeout",
        "drop": "connection",
        "lost": "connection",
        "truncated": "connection",
        "odd": "malformed",
        "429": "throttled",
    }
    name = names.get(word, f"status {word}" if word.isdigit() else word)
    assert asked.retries == {name: 2}
    spent = ResponseStore(account.folder).spent("a-step")
    assert (spent.input_tokens, spent.output_tokens) == teacher.paid_tokens


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    script=st.dictionaries(
        st.sampled_from([f"question {i}" for i in range(6)]),
        st.lists(st.sampled_from([w for w in FAILURES if w != "hang"]), max_size=5),
    )
)
def test_whatever_fails_the_answers_are_those_of_a_healthy_server(tmp_path_factory, script):
    account = SpendingAccount(tmp_path_factory.mktemp("account"), "a-step")
    teacher = Teacher(own_answer, script)
    with serving(teacher) as address:
        asked = ask(endpoint(address), account, questions(6))
        again = ask(endpoint(address), account, questions(6))
    assert texts(asked) == texts(again) == [f"answer to question {i}" for i in range(6)]
    assert set(teacher.paid_questions.values()) == {1}
    assert sum(asked.retries.values()) == sum(map(len, script.values()))
    assert asked.cached == [False] * 6
    assert again.cached == [True] * 6
    assert again.retries == {}


def test_an_answer_is_known_by_what_was_asked_and_not_by_how(account):
    teacher = Teacher(own_answer)
    with serving(teacher) as address, serving(Teacher(own_answer)) as elsewhere:
        first = endpoint(address)
        ask(first, account, questions())
        how = {"max_concurrency": 1, "requests_per_minute": 1e6, "timeout": 9.0, "max_retries": 0, "backoff": 0.5}
        moved = ask(
            endpoint(elsewhere, **how, price={"input_per_million": 1.0}, api_key=KEY),
            SpendingAccount(account.folder, "another-step"),
            questions(),
        )
        assert moved.cached == [True] * 4
        assert len(teacher.paid) == 4
        for what in (
            {"model": "n"},
            {"name": "judge"},
            {"version": "2"},
            {"extra": {"top_p": 0.5}},
            {"omit": ["seed"]},
        ):
            before = len(teacher.paid)
            other = Endpoint(**{**first.model_dump(), **what})
            assert ask(other, account, questions()).cached == [False] * 4
            assert len(teacher.paid) == before + 4
        assert ask(first, account, questions(tokens=6)).cached == [False] * 4
        assert ["seed" in body for body in teacher.bodies[20:]] == [False] * 4 + [True] * 4
    spent = {step: ResponseStore(account.folder).spent(step) for step in ("a-step", "another-step")}
    assert spent["another-step"] == Spent()
    assert (spent["a-step"].input_tokens, spent["a-step"].output_tokens) == teacher.paid_tokens


def test_equal_questions_of_one_call_are_asked_once(account):
    teacher = Teacher(own_answer)
    with serving(teacher) as address:
        asked = ask(endpoint(address, max_concurrency=8), account, questions(1) * 8)
    assert len(teacher.paid) == 1
    assert sorted(asked.cached) == [False] + [True] * 7


@pytest.mark.parametrize("broken", [False, True])
def test_two_equal_concurrent_requests_pay_once(account, broken):
    """The server would not know: it is asked by one of them, or by the other when the first has failed."""
    script = {"question 1": ["404"]} if broken else {}
    teacher = Teacher(own_answer, script, knows_keys=False)
    teacher.gate.clear()
    received, failed = {}, []

    def asks(name):
        try:
            received[name] = ask(
                endpoint(address, max_concurrency=8), SpendingAccount(account.folder, name), questions(6)
            )
        except StepError as error:
            failed.append(error)

    with serving(teacher) as address:
        threads = [threading.Thread(target=asks, args=(name,)) for name in ("one", "other")]
        for thread in threads:
            thread.start()
        wait_for(lambda: teacher.held >= 6)  # each question once, whoever asks it
        teacher.gate.set()
        for thread in threads:
            thread.join()
    assert set(teacher.paid_questions.values()) == {1}
    assert len(teacher.paid) == 6
    assert len(failed) == broken
    for asked in received.values():
        assert texts(asked) == [f"answer to question {i}" for i in range(6)]
    if not broken:
        assert sum(sum(asked.cached) for asked in received.values()) == 6
        with closing(ResponseStore(account.folder)) as answers:
            spent = answers.spent("one") + answers.spent("other")
        assert (spent.input_tokens, spent.output_tokens) == teacher.paid_tokens


def test_no_more_requests_are_under_way_than_allowed(account):
    teacher = Teacher(own_answer)
    with serving(teacher) as address:
        ask(endpoint(address, max_concurrency=3), account, questions(30))
    assert teacher.most_under_way <= 3


def test_what_the_server_refuses_is_left_out_and_named(account):
    teacher = Teacher(own_answer, {"question 2": ["refuse"] * 9})
    with serving(teacher) as address:
        asked = ask(endpoint(address), account, questions())
    assert asked.answers[2] == Failed("refused (400)", "the prompt is too long")
    assert teacher.met["refuse"] == 1
    assert [isinstance(a, Answer) for a in asked.answers] == [True, True, False, True]


def test_a_request_that_fails_for_good_fails_the_step_and_keeps_the_rest(account):
    teacher = Teacher(own_answer, {"question 3": ["500"] * 3})
    with serving(teacher) as address:
        message = (
            "1 of 4 requests failed for good, after 3 tries each; the last one: status 500: scripted 500. Received"
        )
        with pytest.raises(StepError, match=re.escape(message)):
            ask(endpoint(address, max_retries=2, max_concurrency=1), account, questions())
        again = ask(endpoint(address, max_retries=2), account, questions())
    assert again.cached == [True, True, True, False]
    assert set(teacher.paid_questions.values()) == {1}


def test_a_share_of_failures_may_be_allowed(account):
    teacher = Teacher(own_answer, {"question 3": ["503"] * 9})
    with serving(teacher) as address:
        asked = ask(endpoint(address, max_retries=1, max_failed=0.25), account, questions())
    assert asked.answers[3] == Failed("status 503", "scripted 503")
    assert asked.retries == {"status 503": 1}


@pytest.mark.parametrize(
    ("word", "message"),
    [("401", "answers 401: scripted 401"), ("404", "answers 404"), ("quota", "exceeded your quota")],
)
def test_an_error_of_every_request_ends_the_run_without_showing_the_key(account, word, message):
    teacher = Teacher(own_answer, {"*": [word] * 99})
    with serving(teacher) as address, pytest.raises(StepError, match=message) as caught:
        ask(endpoint(address, max_concurrency=1, api_key=KEY), account, questions())
    assert teacher.met == {word: 1}
    assert teacher.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{caught.value!r} {caught.value} {endpoint(address, api_key=KEY)!r}"
    assert not any(KEY.encode() in path.read_bytes() for path in account.folder.rglob("*") if path.is_file())


def test_nothing_of_another_account_goes_to_a_server(account, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, f"planted-{name}")
    teacher = Teacher(own_answer)
    with serving(teacher) as address:
        ask(endpoint(address), account, questions(1))
    assert teacher.headers[0]["authorization"] == "Bearer none"
    assert "planted" not in str(teacher.headers)


def test_an_unreachable_server_is_reported(account):
    with serving(Teacher()) as address:
        pass
    with pytest.raises(StepError, match="failed for good, after 2 tries each; the last one: connection"):
        ask(endpoint(address, max_retries=1), account, questions(1))


def test_every_try_of_a_question_carries_one_idempotency_key(account):
    teacher = Teacher(own_answer, {"question 0": ["500", "lost"]})
    with serving(teacher) as address:
        ask(endpoint(address), account, questions(2))
    keys = {}
    for body, headers in zip(teacher.bodies, teacher.headers, strict=True):
        keys.setdefault(body["messages"][0]["content"], set()).add(headers["idempotency-key"])
    assert {name: len(keys_of_question) for name, keys_of_question in keys.items()} == {
        "question 0": 1,
        "question 1": 1,
    }
    assert keys["question 0"] != keys["question 1"]


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_a_cap_is_never_exceeded_and_cuts_at_the_same_question_in_any_order(account, concurrency):
    """Of 3 tokens each (2 asked, 1 said); the bound of one is 10 bytes and 64 for the template, and 5 to be said."""
    teacher = Teacher(lambda body: ("yes", "stop"))
    bound = len("question 0") + 64 + 5
    with serving(teacher) as address:
        asked = ask(endpoint(address, max_concurrency=concurrency), account, questions(9), cap=Cap(3 * 4 + bound))
        assert [a is not None for a in asked.answers] == [True] * 5 + [False] * 4
        again = ask(endpoint(address, max_concurrency=concurrency), account, questions(9), cap=Cap(3 * 4 + bound))
        assert [a is not None for a in again.answers] == [True] * 5 + [False] * 4
    assert len(teacher.paid) == 5


def test_a_cap_on_money_counts_by_the_price(account):
    teacher = Teacher(lambda body: ("yes", "stop"))
    price = {"input_per_million": 1e6, "output_per_million": 1e7}  # 12 for an answer
    with serving(teacher) as address:
        made = endpoint(address, price=price)
        asked = ask(made, account, questions(9), cap=Cap(max_cost=2 * 12 + (74 + 50)))
    assert [a is not None for a in asked.answers] == [True] * 3 + [False] * 6
    assert ResponseStore(account.folder).spent("a-step") == Spent(6, 3, 36.0, 9)


def test_the_cap_of_a_step_counts_what_it_paid_in_earlier_calls(account):
    teacher = Teacher(lambda body: ("yes", "stop"))
    capped = SpendingAccount(account.folder, "a-step", max_tokens=100)
    with serving(teacher) as address:
        for some in range(0, 6, 2):
            ask(endpoint(address), capped, questions(9)[some : some + 2])
        with pytest.raises(StepError, match="the stage's cap of 100 tokens is reached; raise `max_tokens_total`"):
            ask(endpoint(address), capped, questions(12)[6:])
        before = len(teacher.paid)
        assert ask(endpoint(address), capped, questions(6)).cached == [True] * 6
        assert len(ask(endpoint(address), SpendingAccount(account.folder, "b", 100), questions(9)[8:]).answers) == 1
    assert 3 * before <= 100
    assert before >= 7


def test_answers_of_a_server_that_does_not_count_are_taken_at_their_bound(account):
    with serving(Teacher(own_answer, usage=False)) as address:
        (answer,) = ask(endpoint(address), account, questions(1)).answers
    assert (answer.input_tokens, answer.output_tokens) == (len("question 0") + 64, 5)


def test_an_empty_message_is_an_answer():
    body = {
        "choices": [{"message": {"content": None, "refusal": "no"}, "finish_reason": "content_filter"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 0},
    }
    assert parse_response(json.dumps(body), questions(1)[0], endpoint("http://x/v1")) == Answer(
        "", "content_filter", 3, 0
    )


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


def times(pace, clock, units):
    async def taken():
        answers = []
        for some in units:
            await pace.take(some)
            answers.append(clock.now)
        return answers

    return asyncio.run(taken())


def test_requests_are_spaced_evenly():
    clock = Clock()
    pace = RateLimiter(30, clock, clock.sleep)
    assert times(pace, clock, [1] * 4) == [0, 2, 4, 6]
    clock.now = 100.0  # nothing is saved up
    assert times(pace, clock, [1] * 3) == [100, 102, 104]


def test_tokens_are_spaced_by_their_number_and_what_was_not_used_is_given_back():
    clock = Clock()
    pace = RateLimiter(600, clock, clock.sleep)
    assert times(pace, clock, [100, 50, 1]) == [0, 10, 15]
    assert pace.free == pytest.approx(15.1)
    pace.give_back(-49)
    assert times(pace, clock, [1]) == [pytest.approx(20.0)]


def test_a_server_that_throttles_bars_all():
    clock = Clock()
    pace = RateLimiter(None, clock, clock.sleep)
    pace.bar(7.5)
    pace.bar(2)
    assert times(pace, clock, [1, 1]) == [7.5, 7.5]


def test_the_limit_is_kept_with_a_real_server(account):
    with serving(Teacher(own_answer)) as address:
        began = time.monotonic()
        ask(endpoint(address, requests_per_minute=600), account, questions(5))
        assert time.monotonic() - began >= 0.4


def test_retry_after_is_waited_for(account):
    teacher = Teacher(own_answer, {"question 0": ["429"]}, retry_after="0.5")
    with serving(teacher) as address:
        began = time.monotonic()
        ask(endpoint(address), account, questions(1))
        assert time.monotonic() - began >= 0.5


class Ended(BaseException):
    """What a step is ended with."""


def test_a_step_that_waits_for_a_server_can_be_ended(account):
    """Raised between two lines of Python, as the executor of this process does it; nothing is waited for."""
    teacher, ended = Teacher(own_answer, {"*": ["hang"] * 9}), []

    def asks():
        try:
            ask(endpoint(address, timeout=300.0), account, questions(3))
        except BaseException as error:
            ended.append(type(error))

    with serving(teacher) as address:
        thread = threading.Thread(target=asks)
        thread.start()
        wait_for(lambda: teacher.met["hang"] >= 3)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Ended))
        thread.join(60)
        assert not thread.is_alive()
    assert ended == [Ended]
    assert teacher.paid == []


def test_a_file_that_is_not_a_database_is_refused(account):
    account.folder.mkdir()
    (account.folder / "answers.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(StepError, match=r"answers\.sqlite cannot be read or written: file is not a database"):
        ask(endpoint("http://127.0.0.1:1/v1"), account, questions(1))
