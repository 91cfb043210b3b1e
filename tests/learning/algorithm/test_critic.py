"""A critic: its values against a plain forward pass, its losses against formulas, its update, its checkpoint."""

import math

import pytest
import torch

from learning.algorithm.advantages import credit
from learning.algorithm.critic_heads import least, mean, soft_min
from learning.algorithm.critic_losses import huber, squared
from learning.batch.batch_layout import single_turn
from learning.batch.columns import ColumnView, of_rewards
from learning.lookup import Bound
from learning.models.checkpoint import load_latest, save_checkpoint
from learning.rl.auxiliary_models import Critic
from learning.rl.trained_network import explained_variance
from learning.samples.engine_protocol import Generation
from schemas.critic import Critic as Block
from schemas.errors import StepError
from schemas.stages.rl import Rl

PROMPTS = [[5, 6, 7], [8, 9]]
COMPLETIONS = [[[10, 11, 12, 13], [14]], [[15, 16], [10, 17, 18, 19, 20]]]
REWARDS = [1.0, 0.0, 0.5, 0.0]


def critic(policy, seed=0, budget=4096, **block):
    stage = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["x.y"], "max_steps": 1, "advantage": ["gae"]}
    parts = {
        "ratio": "token",
        "policy_loss": "clipped",
        "loss_aggregation": "token_mean",
        "max_tokens_per_micro_batch": budget,
    }
    return Critic(Block(**block), policy, Rl.model_validate({**stage, **parts}), {}, seed)


def batch(finishes=("stop", "length", "stop", "length")):
    ends = iter(finishes)
    groups = [[Generation(ids, [-1.0] * len(ids), next(ends)) for ids in group] for group in COMPLETIONS]
    return single_turn(PROMPTS, groups).with_paths(reward=torch.tensor(REWARDS, dtype=torch.float64))


def ready(judge, made=None, **options):
    """The batch with values and targets."""
    made = judge.add_values(made or batch())
    column = credit.gae(of_rewards(made), made, made.sampled("value"), lam=1.0, **options)
    return made.with_tokens(advantage=column.values_X, **{"return": column.return_X})


def scramble(judge, seed=1):
    """A head that says something."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in judge.network.head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return judge


@pytest.mark.parametrize("budget", [1, 9, 4096])
def test_values_are_those_of_the_state_before_each_token(tiny_policy, budget):
    judge = scramble(critic(tiny_policy, budget=budget, heads=2))
    made = judge.add_values(batch())
    want, ends = [], []
    with torch.no_grad():
        for prompt, group in zip(PROMPTS, COMPLETIONS, strict=True):
            for ids in group:
                body = judge.network.body(input_ids=torch.tensor([prompt + ids])).last_hidden_state[0]
                both = judge.network.head(body)
                want.append(both[len(prompt) - 1 : -1])
                ends.append(both[-1])
    heads = torch.stack([made.sampled("value.0"), made.sampled("value.1")], -1)
    torch.testing.assert_close(heads, torch.cat(want).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(made.sampled("value"), torch.cat(want).double().mean(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(made.paths["value_end"], torch.stack(ends).double().mean(-1), atol=1e-5, rtol=0)


def test_one_head_starts_at_nothing_and_several_apart(tiny_policy):
    assert critic(tiny_policy).add_values(batch()).sampled("value").tolist() == [0.0] * 12
    one, two, other = (critic(tiny_policy, seed=s, heads=2).add_values(batch()) for s in (4, 4, 5))
    assert torch.equal(one.sampled("value.0"), two.sampled("value.0"))
    assert float((one.sampled("value.0") - one.sampled("value.1")).abs().min()) > 0
    assert not torch.equal(one.sampled("value.0"), other.sampled("value.0"))


def test_the_policy_is_not_the_critics(tiny_policy):
    before = [p.clone() for p in tiny_policy.model.parameters()]
    judge = critic(tiny_policy, learning_rate=0.1)
    for _ in range(3):
        judge.update(ready(judge), 0)
    assert all(torch.equal(a, b) for a, b in zip(before, tiny_policy.model.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, judge.network.body.parameters(), strict=False))


def test_the_first_loss_is_half_the_mean_square_of_the_returns(tiny_policy):
    judge = critic(tiny_policy)
    made = ready(judge)
    judge.update(made, 0)
    points = judge.metrics(made)
    assert points["value_loss"] == pytest.approx((4 * 1.0 + 2 * 0.25) / 2 / 12, abs=1e-6)
    assert points["explained_variance"] == 0.0
    assert points["value"] == 0.0
    assert "value_loss" not in judge.metrics(made)


def test_it_learns_what_depends_on_the_prompt(tiny_policy):
    judge = critic(tiny_policy, learning_rate=3e-3)
    for _ in range(60):
        made = ready(judge, tail="terminal")
        judge.update(made, 0)
    points = judge.metrics(made)
    # What the first tokens of a group earn cannot be told from their common prompt: 0.625 of 2.417 squares.
    assert points["explained_variance"] == pytest.approx(1 - 0.625 / (4.5 - 25 / 12), abs=0.03)
    first, later = made.sampled("value")[0], made.sampled("value")[1:4]
    assert float(first) == pytest.approx(0.5, abs=0.2)  # one completion of this prompt earns 1, the other 0
    torch.testing.assert_close(later, torch.ones(3).double(), atol=0.2, rtol=0)


def gradient(policy, made, **block):
    judge = scramble(critic(policy, **block))
    judge.stage = judge.stage.model_copy(update={"max_grad_norm": None})
    judge.update(ready(judge, made), 0)
    return torch.cat([p.grad.flatten() for p in judge.network.parameters()])


def test_trap_01_the_update_does_not_depend_on_the_micro_batches(tiny_policy):
    want = gradient(tiny_policy, batch(), heads=2)
    for budget in (1, 8, 12):
        got = gradient(tiny_policy, batch(), heads=2, budget=budget)
        assert float((got - want).norm() / want.norm()) < 1e-6


def test_what_is_not_selected_adds_nothing(tiny_policy):
    """Truncated paths train nothing, and do not count: as if they had not been there."""
    got = gradient(tiny_policy, batch(), token_mask=["finished"])
    want = gradient(tiny_policy, batch().take([0, 2]))
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
    assert float((gradient(tiny_policy, batch()) - want).abs().max()) > 1e-3
    judge = critic(tiny_policy, token_mask=["finished"])
    made = ready(judge, batch(["length"] * 4))
    judge.update(made, 0)
    assert "value_loss" not in judge.metrics(made)


def test_gradient_is_that_of_the_formula(tiny_policy):
    got = gradient(tiny_policy, batch(), heads=2, loss={"use": "squared", "clip": 0.1})
    judge = scramble(critic(tiny_policy, heads=2))
    made = ready(judge)
    total = 0.0
    for path, (prompt, ids) in enumerate((p, c) for p, g in zip(PROMPTS, COMPLETIONS, strict=True) for c in g):
        both = judge.network.head(judge.network.body(input_ids=torch.tensor([prompt + ids])).last_hidden_state[0])
        values, target = both[len(prompt) - 1 : -1], made.sampled("return")[made.path_T == path].float()
        total = total + ((values - target[:, None]) ** 2).sum() / 2 / 12 / 2
    grads = torch.autograd.grad(total, list(judge.network.parameters()))
    torch.testing.assert_close(got, torch.cat([g.flatten() for g in grads]), atol=1e-5, rtol=1e-4)


def test_trap_24_a_continued_critic_is_bit_identical(tiny_policy, tmp_path):
    whole, broken = (critic(tiny_policy, heads=2, learning_rate=1e-2) for _ in range(2))
    for _ in range(5):
        whole.update(ready(whole), 0)
    for _ in range(2):
        broken.update(ready(broken), 0)
    save_checkpoint(tmp_path, 2, broken.tensors(), broken.state())
    _, tensors, state = load_latest(tmp_path)
    again = critic(tiny_policy, heads=2, seed=9)
    again.block = broken.block
    again.load(tensors, state)
    for _ in range(3):
        again.update(ready(again), 0)
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, again.tensors()[name]), name
    with pytest.raises(StepError, match="another model"):
        critic(tiny_policy, heads=3).load(tensors, state)


def test_the_rate_is_its_own_and_may_be_a_schedule(tiny_policy):
    judge = critic(tiny_policy, learning_rate={"linear": {"from": 0.1, "to": 0.0, "steps": 10}}, warmup_steps=2)
    made = ready(judge)
    for step, rate in ((0, 0.1), (5, 0.05), (10, 0.0)):
        judge.update(made, step)
        assert judge.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    assert [judge.is_warming_up(step) for step in (0, 1, 2, 3)] == [True, True, False, False]
    judge.block = Block(learning_rate={"controller": "rate"})
    judge.update(made, 0, {"rate": 0.3})
    assert judge.optimizer.param_groups[0]["lr"] == pytest.approx(0.3)


def test_losses_in_closed_form():
    value = torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    old, target = torch.tensor([0.0, 1.9, 0.0]).double(), torch.tensor([1.0, 0.0, 3.0]).double()
    assert squared(value, old, target).tolist() == pytest.approx([0.125, 2.0, 4.5])
    # 0.5 is held at 0.2: the larger loss is that of the held value, which has no gradient.
    clipped = squared(value, old, target, clip=0.2)
    assert clipped.tolist() == pytest.approx([0.32, 2.0, 4.5])
    assert torch.autograd.grad(clipped.sum(), value)[0].tolist() == pytest.approx([0.0, 2.0, -3.0])
    assert huber(value, old, target, delta=1.0).tolist() == pytest.approx([0.125, 1.5, 2.5])
    # The mean of it and of the held value 0.2, whose error 0.8 is within delta.
    held = huber(value, old, target, delta=1.0, clip=0.2)
    assert held.tolist() == pytest.approx([(0.125 + 0.32) / 2, 1.5, 2.5])
    assert torch.autograd.grad(held.sum(), value)[0].tolist() == pytest.approx([-0.25, 1.0, -1.0])


def test_heads_combine_between_least_and_mean():
    both = torch.tensor([[0.0, math.log(3)]], dtype=torch.float64)
    assert float(soft_min(both, alpha=1.0)) == pytest.approx(math.log(1.5), abs=1e-12)
    assert float(least(both)) == 0.0 < float(soft_min(both)) < float(mean(both)) == pytest.approx(math.log(3) / 2)
    assert float(soft_min(both, alpha=1e-4)) == pytest.approx(0.0, abs=1e-3)
    assert float(soft_min(both, alpha=1e4)) == pytest.approx(float(mean(both)), abs=1e-3)


def test_explained_variance():
    target = torch.tensor([1.0, 2.0, 3.0]).double()
    assert explained_variance(target, target) == 1.0
    assert explained_variance(torch.full((3,), 7.0).double(), target) == pytest.approx(0.0)
    assert explained_variance(-target, target) == pytest.approx(-3.0)
    assert explained_variance(target, torch.ones(3).double()) == 0.0


def test_missing_parts_are_reported(tiny_policy):
    made = batch()
    with pytest.raises(StepError, match="asks for value_T"):
        Bound("gae", credit.gae, {}).ask(0, ColumnView(made), of_rewards(made), made)
    judge = critic(tiny_policy)
    with pytest.raises(StepError, match="add `gae` or `value_difference`"):
        judge.update(judge.add_values(made), 0)
    rootless = single_turn([[]], [[Generation([1, 2], [-1.0, -1.0], "stop")]])
    with pytest.raises(StepError, match="give every problem a prompt"):
        judge.add_values(rootless)
