"""ReMax: the greedy answer's reward is the only baseline; the gradient stays unbiased, with a smaller variance.

Not shown: memory and speed against PPO at 7B.
"""

from functools import cache
from pathlib import Path

import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.sample import Sample, by_group
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "remax.yaml"
DOUBLE = {"dtype": torch.float64}
INPUTS = {"rewards.0.model": Path("nowhere")}


@cache
def stage(name="trained"):
    return load_recipe(RECIPE, profile="tiny").stages[name]


@cache
def algorithm(name="trained", preset=None):
    if preset:
        return bind_algorithm(load_recipe(RECIPE.with_name("xrpo.yaml"), profile="tiny").stages[preset], {})
    return bind_algorithm(stage(name), INPUTS)


def sample(reward, tokens=(7, 8), source="policy", group=0, logprobs=None):
    lps = logprobs or [-1.0] * len(tokens)
    row = {"id": str(group), "family": "f"}
    scores = {"scores": {"r": reward}, "reward": reward}
    return Sample(row, group, source, [1, 2], list(tokens), lps, "stop", "", **scores)


def ready(samples, how=None, lp_ref=None):
    """The batch with advantages and weights; the reference is where the policy is, unless it is told otherwise."""
    made = with_dropped(forest(samples), False)
    ref_T = made.sampled("lp_behav") if lp_ref is None else torch.tensor(lp_ref, **DOUBLE)
    made = made.with_tokens(lp_ref=ref_T)
    how = how or algorithm()
    return with_weights(how, with_advantages(how, made, 0), 0, 8)


def test_every_tokens_weight_is_the_difference_of_the_rewards():
    made = ready([sample(0.7, (7, 8, 9)), sample(0.4, (7, 9), "greedy")])
    assert made.sampled("advantage").tolist() == pytest.approx([0.3] * 3, abs=1e-15)
    assert made.sampled("w").tolist() == [1.0] * 3


def test_a_sample_that_earns_what_the_greedy_answer_earns_gives_exactly_nothing():
    made = ready([sample(0.1 + 0.2), sample(0.1 + 0.2, source="greedy")])
    assert made.sampled("advantage").tolist() == [0.0, 0.0]


def test_a_group_of_one_is_enough_where_grpo_has_no_signal():
    assert stage().num_generations == 1
    alone = [sample(0.7), sample(0.4, source="greedy")]
    assert ready(alone).sampled("advantage").tolist() == pytest.approx([0.3, 0.3])
    assert ready(alone[:1], algorithm(preset="baseline")).sampled("advantage").tolist() == [0.0, 0.0]


def test_the_kl_penalty_is_in_the_reward_of_the_sample_alone():
    made = ready([sample(0.7, (7, 8, 9)), sample(0.4, (7, 9), "greedy")], lp_ref=[-1.5, -1.0, -0.5 - 1.0])
    assert made.sampled("advantage").tolist() == pytest.approx([0.7 - 0.05 * (0.5 + 0 + 0.5) - 0.4] * 3, abs=1e-12)


def test_the_plan_samples_one_and_a_greedy_one(answering):
    plan = bind_sampling_slots(stage(), INPUTS).prompt_sampler
    rows = [{"id": c, "prompt": [{"role": "user", "content": c}], "family": "f"} for c in "abc"]
    sampler = answering(lambda prompt, number: prompt)
    samples = sampler.sample(plan.ask(0, {"rows": rows, "num_groups": 3, "n": 1, "seed": 1, "step": 0}))
    assert [[t.source for t in members] for members in by_group(samples).values()] == [["policy", "greedy"]] * 3
    assert [r.temperature for r in sampler.engine.requests] == [None] * 3 + [0.0] * 3


LOGITS = torch.tensor([0.5, 0.1, -0.4], **DOUBLE)
REWARDS = [1.0, 0.6, 0.5]


def of_action(action, name):
    """Gradient of minus the recipe's loss by the logits of a bandit, when `action` was sampled."""
    greedy = int(LOGITS.argmax())
    samples = [sample(REWARDS[action], (action,), logprobs=[float(LOGITS.log_softmax(-1)[action])])]
    if name == "trained":
        samples.append(sample(REWARDS[greedy], (greedy,), "greedy"))
    how = algorithm(name)
    made = ready(samples, how)
    z = LOGITS.clone().requires_grad_()
    columns = view_columns(made, {"lp": z.log_softmax(-1)[[action]], "entropy": torch.zeros(1, **DOUBLE)})
    columns["log_ratio_T"] = how.ratio.ask(0, columns)
    loss = (how.policy_loss.ask(0, columns) * columns["w_T"]).sum()
    return -torch.autograd.grad(loss, z)[0]


def test_the_greedy_answer_itself_has_no_gradient():
    greedy = int(LOGITS.argmax())
    assert of_action(greedy, "trained").tolist() == [0.0] * 3
    assert float(of_action(greedy, "baseline").abs().max()) > 0.1
    assert float(of_action(1 - greedy, "trained").abs().max()) > 0.1


def test_the_baseline_leaves_the_gradient_and_lowers_its_variance():
    pi = LOGITS.softmax(-1)
    z = LOGITS.clone().requires_grad_()
    (true,) = torch.autograd.grad((z.softmax(-1) * torch.tensor(REWARDS, **DOUBLE)).sum(), z)
    spread = {}
    for name in ("trained", "baseline"):
        grads = torch.stack([of_action(action, name) for action in range(3)])
        mean = (pi[:, None] * grads).sum(0)
        torch.testing.assert_close(mean, true, atol=1e-6, rtol=0)
        spread[name] = float((pi[:, None] * (grads - mean) ** 2).sum())
    assert spread["trained"] < spread["baseline"] / 2
