"""Think Outside the Policy: completions sampled with demonstrations train the plain prompt, at ratio e^½ and with a
decaying bonus.

How the paper shapes the ratio and fades the bonus is not known here: what is proven is LUFFY's shape and a straight
line that is full at the first iteration and exactly 0 at the last.

Not shown: gains over GRPO.
"""

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_advantages, with_dropped
from learning.batch.batch_layout import forest
from learning.data.rows import write_rows
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.sample import Sample, by_group
from learning.toy_tasks.hidden_operations import operations
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "icpo.yaml"
DOUBLE = {"dtype": torch.float64}


@cache
def stage(name="trained"):
    return load_recipe(RECIPE, profile="tiny").stages[name]


@cache
def algorithm(name="trained"):
    return bind_algorithm(stage(name), {})


def sample(score, source="policy", logprob=-1.0, step=0):
    filled = {"scores": {"answers.exact": score}, "reward": score}
    return Sample({"id": "q", "family": "f"}, 0, source, [1, 2], [7], [logprob], "stop", "", **filled)


@pytest.fixture
def group(answering, tmp_path):
    """What the recipe's plan samples for a problem, and the sampler."""
    rows = operations(size=20, seed=1, split="train", meaning="smaller")
    solved = [row | {"completion": [{"role": "assistant", "content": row["answer"]}]} for row in rows]
    write_rows(tmp_path, "chat", solved)
    plan = bind_sampling_slots(stage(), {"prompt_sampler.data": tmp_path}).prompt_sampler
    supplies = {"rows": rows, "num_groups": 1, "n": 8, "seed": 1, "step": 0}
    sampler = answering(lambda prompt, number: "1", logprob=-1.5, max_new_tokens=4)
    return sampler.sample(plan.ask(0, supplies)), sampler


def test_six_plain_and_two_demonstrated_completions_are_trained_for_the_same_prompt(group):
    samples, sampler = group
    assert [t.source for t in samples] == ["policy"] * 6 + ["in_context"] * 2
    assert len(by_group(samples)) == 1
    plain, shown = sampler.engine.prompts[0], sampler.engine.prompts[1]
    assert shown.endswith(plain)
    assert len(shown) > 2 * len(plain)
    batch = forest(samples)
    held = [segment for segment, parent in zip(batch.segments, batch.parents, strict=True) if parent == -1]
    assert held == [sampler.encode(samples[0].row["prompt"])]


def test_demonstrations_are_other_problems_each_with_its_own_answer(tmp_path):
    rows = operations(size=20, seed=1, split="train", meaning="smaller")
    solved = [row | {"completion": [{"role": "assistant", "content": row["answer"]}]} for row in rows]
    write_rows(tmp_path, "chat", solved)
    plan = bind_sampling_slots(stage(), {"prompt_sampler.data": tmp_path}).prompt_sampler
    supplies = {"rows": rows, "num_groups": 20, "n": 8, "seed": 1, "step": 0, "rng": np.random.default_rng(0)}
    requests = [request for request in plan.ask(0, supplies) if request.source == "in_context"]
    answers = {row["prompt"][0]["content"]: row["answer"] for row in rows}
    assert len(requests) == len(answers) == 20
    for request in requests:
        *shown, asked = request.context
        assert [asked] == request.row["prompt"]
        questions = [message["content"] for message in shown[::2]]
        assert len({*questions, asked["content"]}) == 3
        assert [message["content"] for message in shown[1::2]] == [answers[question] for question in questions]


def columns(samples, lp):
    made = with_dropped(forest(samples), False)
    made = made.with_tokens(advantage=torch.ones(len(samples), **DOUBLE))
    leaf = torch.tensor(lp, **DOUBLE).requires_grad_()
    view = view_columns(made, {"lp": leaf, "entropy": torch.zeros(len(lp), **DOUBLE)})
    view["log_ratio_T"] = algorithm().ratio.ask(0, view)
    return view, leaf


def test_the_ratio_is_plain_over_demonstrated():
    view, _ = columns([sample(1.0, logprob=-1.0), sample(1.0, "in_context", logprob=-1.5)], [-1.0, -1.0])
    assert view["log_ratio_T"].exp().tolist() == pytest.approx([1.0, math.exp(0.5)], abs=1e-15)
    assert math.exp(0.5) == pytest.approx(1.649, abs=5e-4)


def test_demonstrated_tokens_have_the_shaped_ratio_and_a_gradient_where_own_ones_are_clipped():
    rho = math.exp(0.5)
    samples = [sample(1.0, logprob=-1.5), sample(1.0, "in_context", logprob=-1.5)]
    view, leaf = columns(samples, [-1.0, -1.0])
    loss = algorithm().policy_loss.ask(0, view)
    assert (-loss).tolist() == pytest.approx([1.2, rho / (rho + 0.1)], abs=1e-12)
    (grad,) = torch.autograd.grad(loss.sum(), leaf)
    assert (-grad).tolist() == pytest.approx([0.0, 0.1 * rho / (rho + 0.1) ** 2], abs=1e-12)


def advantages(samples):
    how = algorithm("baseline")
    return with_advantages(how, with_dropped(forest(samples), False), 0).sampled("advantage").tolist()


def test_a_demonstrated_completion_below_the_threshold_leaves_the_group():
    own = [sample(1.0), sample(0.0), sample(0.0)]
    wrong, right = sample(0.0, "in_context"), sample(1.0, "in_context")
    reject = bind_sampling_slots(stage(), {"prompt_sampler.data": Path("nowhere")}).resample[0]
    kept, requests = reject.ask(0, {"samples": [*own, wrong, right]})
    assert kept == [*own, right]
    assert requests == []
    alone, _ = reject.ask(0, {"samples": [*own, wrong]})
    assert advantages(alone) == advantages(own)
    assert advantages([*own, wrong]) != advantages(own)[:3]


def bonus(step):
    """What the recipe's shaping adds to right and wrong, plain and demonstrated completions."""
    samples = [sample(1.0), sample(0.0), sample(1.0, "in_context"), sample(0.0, "in_context")]
    made = with_advantages(algorithm(), with_dropped(forest(samples), False), step)
    shaped = made.paths["reward"]
    return [a - t.reward for a, t in zip(shaped.tolist(), samples, strict=True)]


def test_the_bonus_is_full_at_first_and_exactly_nothing_at_the_end():
    assert bonus(0) == [0.0, 0.0, 0.5, 0.0]
    assert bonus(10) == [0.0, 0.0, 0.25, 0.0]
    assert bonus(stage().max_steps - 1) == [0.0] * 4
