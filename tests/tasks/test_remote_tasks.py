"""Evaluation through a server, and reinforcement learning with a remote judge that a kill does not change."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file

from learning.api.response_store import ResponseStore
from learning.data.rows import write_rows
from schemas.errors import StepError
from schemas.stages.evaluate import Evaluate
from schemas.stages.rl import Rl
from tasks.context import Context
from tasks.evaluate import run as run_evaluate
from tasks.rl import run as run_rl
from tests.tasks.conftest import Stopped, stop_at
from tests.teacher_server import Teacher, serving

SUMS = {"use": "reasoning_gym", "family": "chain_sum", "split": "test", "size": 6, "style": "short"}


def endpoint(address, **more):
    return {"base_url": address, "model": "m", "name": "server", "backoff": 0.001, "max_backoff": 0.002, **more}


def context(tmp_path, name, on_progress=lambda event: None, **inputs):
    here = tmp_path / name
    (here / "checkpoints").mkdir(parents=True, exist_ok=True)
    how = {"key": f"key of {name}", "remote": tmp_path / "remote", "on_progress": on_progress}
    return Context(inputs, here, here / "checkpoints", 5, **how)


def evaluation(address, **more):
    engine = {"use": "openai", "prompts": "text", "endpoint": endpoint(address, price={"output_per_million": 1e6})}
    return Evaluate(kind="evaluate", model="m", tasks=[SUMS], engine=engine, num_bootstrap=100, **more)


def solved(body):
    """Right where the first number is even."""
    prompt = body["prompt"]
    problem = prompt[: prompt.rindex("=")] if "=" in prompt else "0"
    digits = "".join(c if c in "0123456789+- " else " " for c in problem).strip()
    value = eval(digits)
    return str(value if int(digits.split()[0]) % 2 == 0 else value + 1), "stop"


def test_a_server_is_evaluated_and_its_charges_are_reported_once(tmp_path, tiny_policy_folder):
    teacher, events = Teacher(solved, {"*": ["500"]}), []
    with serving(teacher) as address:
        made = context(tmp_path, "a", events.append, model=tiny_policy_folder)
        result = run_evaluate(evaluation(address), made)
        again = run_evaluate(evaluation(address), context(tmp_path, "b", model=tiny_policy_folder))
    right = sum(solved(body)[0] == solved_right(body) for body in map(json.loads, teacher.paid_questions))
    assert result.metrics["accuracy"] == again.metrics["accuracy"] == right / 6
    assert len(teacher.paid) == 6
    spending = [event for event in events if "spent" in event]
    assert sum(event["spent"] for event in spending) == sum(teacher.paid_tokens)
    assert sum(event["paid"] for event in spending) == pytest.approx(teacher.paid_tokens[1])


def solved_right(body):
    prompt = body["prompt"]
    return str(eval("".join(c if c in "0123456789+- " else " " for c in prompt[: prompt.rindex("=")]).strip()))


def test_an_evaluation_that_passes_its_cap_fails_and_keeps_what_was_paid(tmp_path, tiny_policy_folder):
    teacher = Teacher(solved)
    with serving(teacher) as address:
        with pytest.raises(StepError, match="cap of 100 tokens is reached"):
            run_evaluate(evaluation(address, max_tokens_total=100), context(tmp_path, "a", model=tiny_policy_folder))
        before = len(teacher.paid)
        run_evaluate(evaluation(address, max_tokens_total=5000), context(tmp_path, "a", model=tiny_policy_folder))
    assert 0 < before < 6
    assert set(teacher.paid_questions.values()) == {1}


def training(address):
    judge = {"use": "judges.endpoint", "endpoint": endpoint(address), "template": "{completion}"}
    return Rl(
        kind="rl",
        model="m",
        prompts="p",
        rewards=[judge],
        advantage=["center"],
        ratio="token",
        policy_loss="clipped",
        loss_aggregation="token_mean",
        generation_batch_size=8,
        num_generations=4,
        max_completion_length=4,
        max_steps=4,
        save_steps=2,
        learning_rate=1e-2,
    )


def test_a_judge_that_never_says_the_same_twice_does_not_keep_a_killed_stage_from_the_same_bits(
    tmp_path, tiny_policy_folder
):
    rows = [
        {"id": t, "prompt": [{"role": "user", "content": t}], "answer": "", "family": "f", "metadata": ""} for t in "ab"
    ]
    (tmp_path / "prompts").mkdir()
    write_rows(tmp_path / "prompts", "prompts", rows)
    inputs = {"model": tiny_policy_folder, "prompts": tmp_path / "prompts"}
    moods = random.Random(3)
    teacher = Teacher(lambda body: (str(moods.randrange(11)), "stop"), {"*": ["lost"]})
    with serving(teacher) as address:
        with pytest.raises(Stopped):
            run_rl(training(address), context(tmp_path, "killed", stop_at(3), **inputs))
        run_rl(training(address), context(tmp_path, "killed", **inputs))
        paid = len(teacher.paid)
        run_rl(training(address), context(tmp_path, "calm", **inputs))
    assert len(teacher.paid) == paid
    assert set(teacher.paid_questions.values()) == {1}
    weights = [load_file(tmp_path / name / "outputs/model/model.safetensors") for name in ("killed", "calm")]
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name
    before = load_file(tiny_policy_folder / "model.safetensors")
    assert max(float((weights[0][name] - before[name]).abs().max()) for name in before) > 1e-3
    answers = ResponseStore(tmp_path / "remote")
    assert answers.spent("key of calm").tokens == 0
    assert answers.spent("key of killed").output_tokens == paid
    answers.close()
