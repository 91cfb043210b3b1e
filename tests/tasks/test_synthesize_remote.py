"""A teacher behind a server that fails as it is told to: the rows of a healthy one, and a yield report that adds up."""

import json
import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learning.data.rows import read_rows
from learning.problems.generators import reasoning_gym
from schemas.endpoint import Endpoint
from schemas.errors import StepError
from schemas.stages.synthesize import Synthesize
from tasks.context import Context
from tasks.synthesize import run
from tests.teacher_server import Teacher, digest, serving

SUMS = {
    "use": "reasoning_gym",
    "family": "chain_sum",
    "split": "train",
    "size": 6,
    "style": "short",
    "config": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 1},
}
WORDS = {"use": "reasoning_gym", "family": "spell_backward", "split": "train", "size": 3, "style": "short"}
ROWS = [row for of in (SUMS, WORDS) for row in reasoning_gym(**{k: v for k, v in of.items() if k != "use"})]
ANSWERS = {row["prompt"][-1]["content"]: row["answer"] for row in ROWS}
PASSING = ("500", "429", "drop", "malformed", "truncated", "lost")
ENDS = ("right", "right", "wrong", "right", "cut", "empty", "filtered")


def fate(body):
    """What the teacher makes of a sample; decided by the question alone."""
    return ENDS[digest(f"{body['messages'][-1]['content']} {body['seed']}") % len(ENDS)]


def answer(body):
    right = ANSWERS[body["messages"][-1]["content"]]
    return {
        "right": (right, "stop"),
        "wrong": ("no idea", "stop"),
        "cut": (right, "length"),
        "empty": (None, "stop"),
        "filtered": ("", "content_filter"),
    }[fate(body)]


def stage(address, **more):
    endpoint = {
        "base_url": address,
        "model": "m",
        "name": "teacher",
        "backoff": 0.001,
        "max_backoff": 0.002,
        "max_concurrency": 4,
        "max_retries": 6,
        "price": {"input_per_million": 1e6, "output_per_million": 2e6},
    }
    teacher = {"use": "endpoint", "endpoint": endpoint | more.pop("endpoint", {})}
    return Synthesize(
        kind="synthesize", problems=[SUMS, WORDS], teacher=teacher, num_generations=4, max_completion_length=16, **more
    )


def made(tmp_path, stage, name="a", events=None):
    here = tmp_path / name
    (here / "checkpoints").mkdir(parents=True)
    hear = (lambda event: None) if events is None else events.append
    result = run(
        stage,
        Context({}, here, here / "checkpoints", 5, on_progress=hear, key=f"key {name}", remote=tmp_path / "remote"),
    )
    return read_rows(here / "outputs/chat", "chat"), result


def check_sums(result, problems=9, wanted=36):
    """Every reply that was wanted is found again under exactly one heading, in every family and in all."""
    *families, whole = result.details["yield"]
    for line in (*families, whole):
        ends = {name: number for name, number in line.items() if ": " in name}
        failed = sum(n for name, n in ends.items() if name.startswith("failed: "))
        rejected = sum(n for name, n in ends.items() if name.startswith("rejected: "))
        assert line["wanted"] == line["asked"] + line["missing"]
        assert line["asked"] == line["answered"] + failed
        assert line["answered"] == line["accepted"] + rejected
        assert line["yield"] == (line["accepted"] / line["answered"] if line["answered"] else 0)
    for name in whole:
        if name not in ("family", "yield"):
            assert whole[name] == pytest.approx(sum(line[name] for line in families))
    assert (whole["problems"], whole["wanted"]) == (problems, wanted)
    return whole


def test_the_yield_is_what_the_server_did(tmp_path):
    script = {ROWS[0]["prompt"][-1]["content"]: ["500", "429", "lost"], ROWS[1]["prompt"][-1]["content"]: ["malformed"]}
    teacher, events = Teacher(answer, script), []
    with serving(teacher) as address:
        rows, result = made(tmp_path, stage(address), events=events)
    whole = check_sums(result)
    fates = Counter(fate(json.loads(question)) for _, question in teacher.paid)
    right = [
        (q["messages"][-1]["content"], answer(q)[0])
        for q in (json.loads(q) for _, q in teacher.paid)
        if fate(q) == "right"
    ]
    assert set(teacher.paid_questions.values()) == {1}
    assert whole["answered"] == len(teacher.paid) == 36
    assert whole["rejected: truncated"] == fates["cut"] > 0
    assert whole["rejected: unreadable"] == fates["empty"] > 0
    assert whole["rejected: content filter"] == fates["filtered"] > 0
    assert whole["rejected: reward"] == fates["wrong"] > 0
    assert whole["rejected: duplicate"] == len(right) - len(set(right)) > 0
    assert whole["accepted"] == len(set(right)) == len(rows)
    assert [(r["prompt"][-1]["content"], r["completion"][0]["content"]) for r in rows] == [
        (text, ANSWERS[text]) for text in ANSWERS if (text, ANSWERS[text]) in right
    ]
    retries = {"connection": 4, "malformed": 4, "status 500": 4, "throttled": 4}
    assert result.details["retries"] == retries
    numbers = {"retried": 16, "throttled": 4, "failed": 0, "cached": 0, "paid": 36, "missing": 0, "capped": False}
    assert numbers.items() <= result.metrics.items()
    asked, report = teacher.paid_tokens
    assert (whole["input_tokens"], whole["output_tokens"], whole["cost"]) == (asked, report, asked + 2 * report)
    spending = [event for event in events if "spent" in event]
    assert (
        sum(event["spent"] for event in spending) == sum(event["paid_tokens"] for event in spending) == asked + report
    )
    assert sum(event["paid"] for event in spending) == pytest.approx(asked + 2 * report)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    script=st.dictionaries(st.sampled_from(sorted(ANSWERS)), st.lists(st.sampled_from(PASSING), max_size=4), max_size=5)
)
def test_whatever_the_server_does_the_rows_are_the_same(tmp_path_factory, script):
    tmp_path = tmp_path_factory.mktemp("any")
    rows = []
    for name, one in (("healthy", {}), ("failing", script)):
        teacher = Teacher(answer, one)
        with serving(teacher) as address:
            made_rows, result = made(tmp_path / name, stage(address))
        rows.append(made_rows)
        check_sums(result)
        assert set(teacher.paid_questions.values()) == {1}
        assert result.metrics["retried"] == 4 * sum(map(len, one.values()))
    assert rows[0] == rows[1]
    files = [tmp_path / name / "a/outputs/chat/rows.parquet" for name in ("healthy", "failing")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_another_step_with_the_same_questions_pays_nothing(tmp_path):
    teacher, events = Teacher(answer), []
    with serving(teacher) as address:
        rows, first = made(tmp_path, stage(address), "a")
        again, second = made(tmp_path, stage(address, min_reward=0.0), "b", events=events)
    assert len(teacher.paid) == 36
    assert (first.metrics["cached"], second.metrics["cached"], second.metrics["paid"]) == (0, 36, 0)
    assert not [event for event in events if "spent" in event]
    assert second.metrics["cost"] == first.metrics["cost"]
    assert len(again) > len(rows)


def test_a_cap_ends_the_stage_with_what_it_has_and_says_what_is_missing(tmp_path):
    runs = {}
    for concurrency in (1, 8):
        teacher = Teacher(answer)
        with serving(teacher) as address:
            capped = stage(address, max_tokens_total=200, endpoint={"max_concurrency": concurrency})
            runs[concurrency] = made(tmp_path / str(concurrency), capped)
        assert sum(teacher.paid_tokens) <= 200
    (rows, result), (others, _) = runs.values()
    assert rows == others != []
    whole = check_sums(result)
    assert 0 < whole["missing"] < 36
    assert result.metrics["capped"] is True
    assert result.metrics["missing"] == whole["missing"]
    assert result.details["capped"] == f"{whole['missing']} of 36 replies were not requested: the cap is 200 tokens"


def test_a_cap_on_money_below_the_first_reply_is_no_result(tmp_path):
    message = "36 of 36 replies were not requested: the cap is 3.0 of money"
    with serving(Teacher(answer)) as address, pytest.raises(StepError, match=re.escape(message)):
        made(tmp_path, stage(address, max_cost=3))


def test_what_is_refused_is_left_out_and_counted(tmp_path):
    teacher = Teacher(answer, {ROWS[2]["prompt"][-1]["content"]: ["refuse"] * 9})
    with serving(teacher) as address:
        _, result = made(tmp_path, stage(address))
    whole = check_sums(result)
    assert whole["failed: refused (400)"] == result.metrics["failed"] == 4
    assert result.details["failures"] == ["refused (400): the prompt is too long"] * 4


def test_a_server_that_refuses_everything_is_quoted(tmp_path):
    message = r"none of 0 samples was accepted; .*36 failed: refused \(400\); refused \(400\): the prompt is too long"
    with serving(Teacher(answer, {"*": ["refuse"] * 9})) as address, pytest.raises(StepError, match=message):
        made(tmp_path, stage(address))


def test_a_failed_step_resumes_where_it_stopped(tmp_path):
    teacher = Teacher(answer, {ROWS[4]["prompt"][-1]["content"]: ["500"] * 3})
    with serving(teacher) as address:
        with pytest.raises(StepError, match="failed for good"):
            made(tmp_path, stage(address, endpoint={"max_retries": 1}), "a")
        before = len(teacher.paid)
        rows, result = made(tmp_path, stage(address), "b")
    assert before >= 4
    assert result.metrics["cached"] == before
    assert set(teacher.paid_questions.values()) == {1}
    with serving(Teacher(answer)) as address:
        assert made(tmp_path / "healthy", stage(address))[0] == rows


def test_a_user_prompt_and_a_part_of_the_reply(tmp_path):
    reply = "so: <answer>first</answer> or <answer>last one</answer>"
    teacher = Teacher(lambda body: (reply if body["seed"] else "none", "stop"))
    more = {"system": "Be brief.", "template": "Solve {prompt} ({answer})", "pattern": "<answer>(.*?)</answer>"}
    endpoint = Endpoint(base_url="http://x", model="m").model_dump()
    with serving(teacher) as address:
        own = {"use": "endpoint", "endpoint": endpoint | {"base_url": address, "extra": {"top_p": 0.5}}, **more}
        how = {"rewards": [], "num_generations": 2, "temperature": 0.25}
        requests = Synthesize(kind="synthesize", problems=[WORDS], teacher=own, **how)
        rows, result = made(tmp_path, requests)
    assert [row["completion"] for row in rows] == [[{"role": "assistant", "content": "last one"}]] * 3
    (line,) = result.details["yield"]
    assert line["rejected: unreadable"] == 3
    row = rows[0]
    assert teacher.bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    questions = {body["messages"][1]["content"] for body in teacher.bodies}
    assert f"Solve {row['prompt'][-1]['content']} ({row['answer']})" in questions
    assert {(b["temperature"], b["max_tokens"], b["top_p"]) for b in teacher.bodies} == {(0.25, 64, 0.5)}


def test_a_token_limit_applies_to_a_user_model(tmp_path, tiny_policy_folder):
    """It is looked at after every 512 samples: eight problems with 64 samples each."""
    how = {"num_generations": 64, "max_completion_length": 2, "rewards": [{"use": "formats.matches", "pattern": ".*"}]}
    results = {}
    for cap in (10, 10**6):
        here = tmp_path / str(cap)
        (here / "checkpoints").mkdir(parents=True)
        asked = Synthesize(
            kind="synthesize", problems=[SUMS | {"size": 20}], model="m", max_tokens_total=cap, min_reward=0.0, **how
        )
        results[cap] = run(asked, Context({"model": tiny_policy_folder}, here, here / "checkpoints", 5)).metrics
    assert (results[10]["generated"], results[10]["missing"], results[10]["capped"]) == (512, 12 * 64, True)
    assert results[10**6]["generated"] == 20 * 64
    assert "capped" not in results[10**6]
