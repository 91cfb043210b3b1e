"""GHPO: a hint of 25, then 50 % of the solution gives a group without a gradient one, and changes nothing else.

Not shown: 5 % on six benchmarks of mathematics.
"""

import json
import math
from functools import cache
from pathlib import Path

import pytest

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import micro_loss, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.data.rows import write_rows
from learning.rl.iteration import collect_samples
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.sample import History, Sample
from learning.sampling.iteration_context import IterationContext
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "ghpo.yaml"
SOLUTION = "1 + 2 = 3, 3 + 3 = 6, 6 + 4 = 10 #### 10"
LENGTH = len(SOLUTION)


@cache
def stage(name="trained"):
    return load_recipe(RECIPE, profile="tiny").stages[name]


def row(name="q"):
    messages = [{"role": "user", "content": "1 + 2 + 3 + 4 ="}]
    return {"id": name, "prompt": messages, "answer": "10", "family": "chain_sum", "metadata": "{}"}


@pytest.fixture
def inputs(tmp_path):
    completion = [{"role": "assistant", "content": SOLUTION}]
    write_rows(tmp_path, "chat", [row() | {"completion": completion}])
    return {"resample.0.data": tmp_path}


def sampled(name, inputs, sampler, step=9):
    """The samples of one iteration of the recipe's stage with one problem."""
    supplies = {"rows": [row()], "num_groups": 1, "n": 4, "seed": 1, "step": step, "states": {}, "metrics": {}}
    return collect_samples(
        bind_sampling_slots(stage(name), inputs), IterationContext(**supplies, sampler=sampler, history=History()), {}
    )


def gradient(name, samples, policy):
    """Norm of the gradient of the recipe's loss, and the batch."""
    how = bind_algorithm(stage(name), {})
    made = with_advantages(how, with_dropped(forest(samples), False), 0)
    made = with_weights(how, made, 0, stage(name).max_completion_length)
    loss, _ = micro_loss(how, policy.model, made, step=0, temperature=1.0)
    policy.model.zero_grad(set_to_none=True)
    loss.backward()
    return math.sqrt(sum(float(p.grad.square().sum()) for p in policy.model.parameters())), made


def needs(share):
    """A policy that is right in its first completion, if the prompt has at least so much of the solution."""
    hint = SOLUTION[: math.ceil(share * LENGTH)]
    return lambda prompt, number: "#### 10" if hint in prompt and number == 0 else "#### 9"


def test_grpo_learns_nothing_where_ghpo_has_a_gradient(answering, inputs, tiny_policy):
    plain = sampled("baseline", inputs, answering(needs(0.25), max_new_tokens=56))
    assert gradient("baseline", plain, tiny_policy)[0] == 0.0
    sampler = answering(needs(0.25), max_new_tokens=56)
    samples = sampled("trained", inputs, sampler)
    assert sampler.engine.prompts == ["1 + 2 + 3 + 4 =", "1 + 2 + 3 + 4 =\n" + SOLUTION[: math.ceil(0.25 * LENGTH)]]
    assert [t.source for t in samples] == ["hinted"] * 4
    assert gradient("trained", samples, tiny_policy)[0] > 1e-4


def test_the_hint_carries_no_loss(answering, inputs, tiny_policy):
    samples = sampled("trained", inputs, answering(needs(0.25), max_new_tokens=56))
    _, made = gradient("trained", samples, tiny_policy)
    ids = made.packed.input_ids_M[made.sampled_T].tolist()
    assert ids == [token for t in samples for token in t.completion_ids]
    assert len(made.sampled("w")) == sum(len("#### 10.") if i == 0 else len("#### 9.") for i in range(4))


def test_what_is_still_all_wrong_gets_the_next_share(answering, inputs):
    sampler = answering(needs(0.5), max_new_tokens=56)
    sampled("trained", inputs, sampler)
    hints = [prompt.partition("\n")[2] for prompt in sampler.engine.prompts]
    assert [len(hint) for hint in hints] == [0, math.ceil(0.25 * LENGTH), math.ceil(0.5 * LENGTH)]
    assert all(SOLUTION.startswith(hint) for hint in hints)
    sampler = answering(needs(1.1), max_new_tokens=56)
    samples = sampled("trained", inputs, sampler)
    assert len(sampler.engine.requests) == 4
    assert len(samples) == 4


def test_a_group_with_one_right_answer_is_returned_byte_for_byte(answering, inputs):
    follow = bind_sampling_slots(stage(), inputs).resample[0]
    samples = [
        Sample(row(), 0, "policy", [1], [7], [-1.0], "stop", str(i), scores={"r": float(i == 2)}, reward=float(i == 2))
        for i in range(4)
    ]
    before = [json.dumps(t.to_json()).encode() for t in samples]
    supplies = {"samples": samples, "n": 4, "sampler": answering(needs(0)), "round": 0, "states": {}, "step": 9}
    kept, requests = follow.ask(9, supplies)
    assert [json.dumps(t.to_json()).encode() for t in kept] == before
    assert requests == []


def test_in_the_first_iterations_everything_is_guided(answering, inputs):
    for step, guided in ((0, True), (1, True), (2, False)):
        sampler = answering(needs(0), max_new_tokens=56)
        samples = sampled("trained", inputs, sampler, step=step)
        hints = [prompt.partition("\n")[2] for prompt in sampler.engine.prompts]
        assert hints == ["", SOLUTION[: math.ceil(0.5 * LENGTH)]][: 2 if guided else 1]
        assert {t.source for t in samples} == {"hinted" if guided else "policy"}
    # What is still all wrong in a guided iteration gets no further hint.
    sampler = answering(needs(1.1), max_new_tokens=56)
    sampled("trained", inputs, sampler, step=0)
    assert len(sampler.engine.requests) == 2
