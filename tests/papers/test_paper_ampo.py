"""More Than One Teacher: answers of the teachers that the policy understands best enter groups without a right answer,
with weight p/(p + 0.1).

The score is the mean probability of the answer's tokens, as in the released code.

Not shown: the gain over a single stronger teacher.
"""

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import micro_loss, view_columns, with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import forest
from learning.collection.extra_samples import extra_samples
from learning.data.rows import write_rows
from learning.rl.sampling_slots import bind_sampling_slots
from learning.samples.sample import Sample, by_group
from learning.toy_tasks.sums import told_sum, worked_sum
from schemas.recipe.load import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "ampo.yaml"
DOUBLE = {"dtype": torch.float64}
RNG = np.random.default_rng(0)


@cache
def stage(name="trained"):
    return load_recipe(RECIPE, profile="tiny").stages[name]


def row(name, problem, answer):
    messages = [{"role": "user", "content": problem}]
    return {"id": name, "prompt": messages, "answer": answer, "family": "chain_sum", "metadata": "{}"}


ROWS = [row("a", "1 + 2 + 3 + 4 =", "10"), row("b", "7 - 2 + 3 - 4 =", "4")]
STYLES = [worked_sum, *(lambda r, rng, s=s: told_sum(r, rng, style=s) for s in ("totals", "words"))]


@pytest.fixture
def inputs(tmp_path):
    """What the recipe's three teachers write."""
    folders = {}
    for i, teacher in enumerate(STYLES):
        folder = tmp_path / str(i)
        folder.mkdir()
        rows = [r | {"completion": [{"role": "assistant", "content": teacher(r, RNG)}]} for r in ROWS]
        write_rows(folder, "chat", rows)
        folders[f"extra_samples.0.data.{i}"] = folder
    return folders


def own(rewards, which, group):
    return [
        Sample(ROWS[which], group, "policy", [7 + which], [9], [-0.5], "stop", "", scores={"r": r}, reward=r)
        for r in rewards
    ]


@pytest.fixture
def mixed(inputs, answering):
    """A group that is all wrong and one with a right answer, after the recipe's source."""
    samples = [*own([0.0] * 8, 0, 0), *own([0.0] * 7 + [1.0], 1, 1)]
    source = bind_sampling_slots(stage(), inputs).extra_samples[0]
    sampler = answering(lambda *_: "")
    made = source.ask(0, {"samples": samples, "sampler": sampler})
    for sample in made:
        if not sample.scores:
            sample.scores, sample.reward = {"r": 1.0}, 1.0
    return samples, by_group(made), sampler


def test_the_three_teachers_write_in_three_styles():
    assert [teacher(ROWS[1], RNG) for teacher in STYLES] == [
        "7 - 2 = 5, 5 + 3 = 8, 8 - 4 = 4 #### 4",
        "5, 8, 4 #### 4",
        "7 take 2 is 5, add 3 is 8, take 4 is 4 #### 4",
    ]


def test_only_the_group_that_is_all_wrong_gets_two_teachers(mixed):
    samples, groups, _ = mixed
    assert [t.source for t in groups[0]] == ["policy"] * 6 + ["teacher"] * 2
    assert groups[1] == samples[8:]


def test_the_chosen_make_the_right_answer_likeliest(mixed, tiny_policy):
    _, groups, sampler = mixed
    scores = {}
    for teacher in STYLES:
        text = teacher(ROWS[0], RNG)
        lead = text[: -len("10")]
        ids = sampler.encode(ROWS[0]["prompt"]) + tiny_policy.tokenizer.encode(text)
        with torch.no_grad():
            lps = tiny_policy.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        start = len(ids) - len(text) + len(lead)
        scores[text] = sum(float(lps[i - 1, ids[i]].exp()) for i in (start, start + 1)) / 2
    best = sorted(scores, key=scores.get, reverse=True)[:2]
    assert [t.text for t in groups[0][6:]] == best


@pytest.mark.parametrize(("reduce", "best"), [("mean_probability", (0, 1)), ("mean", (1, 2))])
def test_an_answer_is_scored_by_its_mean_probability(inputs, answering, monkeypatch, reduce, best):
    """0.9 and 0.01 have the mean 0.455, 0.3 and 0.3 the mean 0.3; by log-probabilities the second is above."""
    lps = [[math.log(0.9), math.log(0.01)], [math.log(0.3)] * 2, [math.log(0.2)] * 2]
    monkeypatch.setattr(extra_samples, "logprobs", lambda sampler, pairs: lps)
    (use,) = stage().extra_samples
    changed = stage().model_copy(update={"extra_samples": [use.model_copy(update={"reduce": reduce})]})
    source = bind_sampling_slots(changed if reduce == "mean" else stage(), inputs).extra_samples[0]
    made = source.ask(0, {"samples": own([0.0] * 8, 0, 0), "sampler": answering(lambda *_: "")})
    assert [t.text for t in made[6:]] == [STYLES[i](ROWS[0], RNG) for i in best]


def test_a_bare_answer_is_no_reasoning(inputs, answering):
    bare = [r | {"completion": [{"role": "assistant", "content": r["answer"]}]} for r in ROWS]
    write_rows(inputs["extra_samples.0.data.0"], "chat", bare)
    source = bind_sampling_slots(stage(), inputs).extra_samples[0]
    made = source.ask(0, {"samples": own([0.0] * 8, 0, 0), "sampler": answering(lambda *_: "")})
    assert {t.text for t in made[6:]} == {teacher(ROWS[0], RNG) for teacher in STYLES[1:]}


def gradient(name, samples, policy):
    how = bind_algorithm(stage(name), {f"extra_samples.0.data.{i}": Path("nowhere") for i in range(3)})
    made = with_weights(how, with_advantages(how, with_dropped(forest(samples), False), 0), 0, 64)
    loss, _ = micro_loss(how, policy.model, made, step=0, temperature=1.0)
    policy.model.zero_grad(set_to_none=True)
    loss.backward()
    return sum(float(p.grad.abs().sum()) for p in policy.model.parameters())


def test_teachers_give_the_group_a_gradient(mixed, tiny_policy):
    samples, groups, _ = mixed
    assert gradient("baseline", samples[:8], tiny_policy) == 0.0
    assert gradient("trained", groups[0], tiny_policy) > 1.0


@pytest.mark.parametrize(("p", "weight"), [(0.1, 0.5), (0.9, 0.9), (0.01, 1 / 11)])
def test_a_teachers_token_weighs_p_over_p_and_a_tenth(p, weight):
    teacher = Sample(ROWS[0], 0, "teacher", [1], [5], None, "stop", "", scores={"r": 1.0}, reward=1.0)
    how = bind_algorithm(stage(), {f"extra_samples.0.data.{i}": Path("nowhere") for i in range(3)})
    # An own token beside it, with a ratio of 1.5: clipped at 1.2.
    made = with_dropped(forest([teacher, *own([1.0], 0, 0)]), False).with_tokens(advantage=torch.tensor([1.0, 1.0]))
    lp = torch.tensor([p, 1.5 * float(torch.tensor(-0.5).double().exp())], **DOUBLE).log().requires_grad_()
    columns = view_columns(made, {"lp": lp, "entropy": torch.zeros(2, **DOUBLE)})
    columns["log_ratio_T"] = how.ratio.ask(0, columns)
    loss = how.policy_loss.ask(0, columns)
    assert -loss[0].item() == pytest.approx(weight, abs=1e-12)
    assert -loss[1].item() == pytest.approx(1.2, abs=1e-12)
    (grad,) = torch.autograd.grad(loss.sum(), lp)
    assert grad.tolist() == pytest.approx([-p * 0.1 / (p + 0.1) ** 2, 0.0], abs=1e-12)
