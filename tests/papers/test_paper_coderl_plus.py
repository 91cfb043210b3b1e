"""CodeRL+: executing the own programs becomes a task of the same iteration, and gives a gradient where code rewards
give none.

Whether a half-right answer earns a half, as in the released code, or nothing is an option, and both are proven.

Not shown: the gains on benchmarks.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import micro_loss, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.collection.program_traces import program_traces
from learning.lookup import bind
from learning.rl.iteration import collect_samples
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.sample import History, Sample
from learning.sampling.iteration_context import IterationContext
from learning.sampling.sampler import scoring
from learning.toy_tasks.coding import state_row, straight_programs
from learning.toy_tasks.rewards.execution import passed, states
from schemas.errors import StepError
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "coderl-plus.yaml"
ROWS = straight_programs(size=4, seed=3, split="train")


@cache
def stage(name="trained"):
    return load_recipe(RECIPE, profile="tiny").stages[name]


def sampled(answering, write, name="trained"):
    """The samples of one iteration of the recipe's stage over four problems."""
    sampler = answering(write, max_new_tokens=32)
    supplies = {"rows": ROWS, "num_groups": 4, "n": 4, "seed": 1, "step": 0, "states": {}, "metrics": {}}
    return collect_samples(
        bind_sampling_slots(stage(name), {}), IterationContext(**supplies, sampler=sampler, history=History()), {}
    ), sampler


def test_the_target_is_every_variables_last_value():
    row = state_row("x=2; y=x*3; x=y-1", {}, "p")
    assert json.loads(row["metadata"])["states"] == {"x": 5, "y": 6}
    assert states([row], ["x=5,y=6"]) == [1.0]


@pytest.mark.parametrize(("partial", "score"), [(True, 0.5), (False, 0.0)])
def test_a_half_right_answer_earns_what_the_option_says(partial, score):
    row = state_row("x=2; y=x*3; x=y-1", {}, "p")
    assert states([row], ["x=5,y=7"], partial=partial) == [score]


def write(prompt, number):
    """Programs: one that may be right, one that is not, two that are none; answers: half of them right."""
    if "|" in prompt:
        return "x=1,y=1" if number % 2 else "x=0"
    return ("x=a+b;y=x", "x=a*7;y=2;x=y", "x=", "what?")[number]


def test_auxiliary_problems_are_this_iterations_own_programs_failed_ones_too(answering):
    samples, _ = sampled(answering, write)
    code = [t for t in samples if t.source == "policy"]
    extra = {t.row["id"]: t.row for t in samples if t.source == "auxiliary"}
    assert 1 < len(extra) <= 8
    written = {(t.text, t.row["id"]) for t in code}
    kept = [json.loads(row["metadata"]) for row in extra.values()]
    assert {(one["program"], one["problem"]) for one in kept} <= written
    failed = {t.text for t in code if t.reward == 0.0}
    assert "x=a*7;y=2;x=y" in failed & {one["program"] for one in kept}
    assert {one["program"] for one in kept}.isdisjoint({"x=", "what?"})
    for row in extra.values():
        assert states([row], [row["answer"]]) == [1.0]


def gradient(samples, policy, name="trained"):
    how = bind_algorithm(stage(name), {})
    made = with_weights(how, with_advantages(how, with_dropped(forest(samples), False), 0), 0, 32)
    loss, _ = micro_loss(how, policy.model, made, step=0, temperature=1.0)
    policy.model.zero_grad(set_to_none=True)
    loss.backward()
    return sum(float(p.grad.abs().sum()) for p in policy.model.parameters())


def foretold(prompt, number):
    """A program that fails everywhere; every second time its variables are rightly foretold."""
    if "|" in prompt:
        return "y=9,x=1" if number % 2 else "x=0"
    return "y=9;x=1"


def test_code_rewards_that_are_all_equal_train_nothing_and_the_joint_loss_does(answering, tiny_policy):
    plain, _ = sampled(answering, foretold, "baseline")
    assert {t.reward for t in plain} == {0.0}
    assert gradient(plain, tiny_policy, "baseline") == 0.0
    joint, _ = sampled(answering, foretold)
    assert gradient([t for t in joint if t.source == "policy"], tiny_policy) == 0.0
    assert gradient(joint, tiny_policy) > 1e-3


def test_the_comparison_has_as_many_completions():
    for profile in ("tiny", "full"):
        stages = load_recipe(RECIPE, profile=profile).stages
        (extra,) = (use.options for use in stages["trained"].resample)
        sampled = stages["trained"].generation_batch_size + extra["size"] * extra["n"]
        assert sampled == stages["baseline"].generation_batch_size
        assert stages["trained"].rewards == stages["baseline"].rewards


def test_each_kind_of_problem_has_its_own_reward(answering):
    samples, sampler = sampled(answering, lambda p, i: "z=0" if "|" in p else (ROWS[0]["answer"] if i else "x=0"))
    right = {t.row["id"] for t in samples if t.reward == 1.0}
    assert right == {ROWS[0]["id"]}
    assert sum("|" in prompt for prompt in sampler.engine.prompts) == len({t.group for t in samples}) - 4


def test_a_correct_loop_is_a_correct_program_and_its_variables_are_asked_for():
    row = ROWS[0]
    assert passed([row] * 2, [LOOP.format(row["answer"]), LOOP.format(row["answer"]) + "x += 1\n"]) == [1.0, 0.0]
    traced = state_row("x = a\nfor i in range(3):\n  x += i", {"a": 2, "b": 1}, "p")
    assert json.loads(traced["metadata"])["states"] == {"x": 5, "i": 2}


LOOP = "{}\nfor i in range(3):\n  x += 0\n"
PYTHON = [
    {
        "id": name,
        "prompt": [{"role": "user", "content": f"Write {name}(n)."}],
        "answer": None,
        "family": "python",
        "metadata": json.dumps({"tests": [f"assert {name}(3) == {value}"]}),
    }
    for name, value in (("triangle", 6), ("square", 9))
]
TRIANGLE = "def triangle(n):\n    total = 0\n    for i in range(n + 1):\n        total += i\n    return total"


def test_real_python_with_loops_is_traced_as_the_profile_own_says():
    """The second domain: functions in Python, tests as assertions, everything in the sandbox."""
    given = [f"vars.{name}=path:./{name}" for name in ("model", "prompts", "held_out")]
    trained = load_recipe(RECIPE, profile="own", overrides=given).stages["trained"]
    (resample,), (reward,) = (list(map(bind, uses)) for uses in (trained.resample, trained.rewards))
    short = TRIANGLE.replace("range(n + 1)", "range(n)")
    texts = [TRIANGLE, short, "def triangle(n): return x", "what?"]
    samples = [Sample(PYTHON[0], 0, "policy", [1], [2], [0.0], "stop", text) for text in texts]
    assert reward.ask(0, scoring(samples)) == [1.0, 0.0, 0.0, 0.0]
    kept, requests = resample.ask(0, {"samples": samples, "round": 0, "seed": 1, "step": 0})
    assert kept == samples
    assert {json.loads(request.row["metadata"])["program"] for request in requests} == {TRIANGLE, short}
    assert {(request.n, request.source) for request in requests} == {(4, "auxiliary")}
    right = next(r.row for r in requests if json.loads(r.row["metadata"])["program"] == TRIANGLE)
    assert "triangle(3)" in right["prompt"][0]["content"]
    predicted = ["n = 3\ntotal = 6\ni = 3", "n = 3", "what?", right["answer"]]
    answers = [Sample(right, 1, "auxiliary", [1], [2], [0.0], "stop", text) for text in predicted]
    assert reward.ask(0, scoring(answers)) == pytest.approx([1.0, 1 / 3, 0.0, 1.0])
    assert resample.ask(0, {"samples": samples, "round": 1, "seed": 1, "step": 0})[1] == []


def test_problems_without_an_assertion_are_refused_by_name():
    bare = {**PYTHON[0], "metadata": json.dumps({"tests": [{"input": "1", "output": "1"}]})}
    sample = Sample(bare, 0, "policy", [1], [2], [0.0], "stop", TRIANGLE)
    with pytest.raises(StepError, match="no assertion in `tests`"):
        program_traces([sample], 0, np.random.default_rng(0))
