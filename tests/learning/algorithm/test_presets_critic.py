"""Presets with a critic: advantage, targets, loss and gradient against the papers' formulas in float64."""

from pathlib import Path

import pytest
import torch
import yaml

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import single_turn
from learning.lookup import bind
from learning.rl.auxiliary_models import Critic
from learning.samples.engine_protocol import Generation
from schemas.stages.rl import Rl

PRESETS = Path(__file__).parents[3] / "recipes" / "algorithms"
LENGTHS = [[30, 7, 41], [2, 25, 6]]
REWARDS = [1.0, 0.0, 0.5, 0.0, 1.0, 0.0]
FINISHES = ["stop", "stop", "length", "length", "stop", "stop"]
COUNTS = [n for group in LENGTHS for n in group]
TOTAL = sum(COUNTS)


def stage(name):
    preset = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
    base = {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["x.y"], "max_steps": 1}
    return Rl.model_validate({**base, **preset})


def numbers(count, seed, spread=1.0):
    return spread * torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch():
    """Two groups of three ragged completions, two of them cut, with values."""
    behav, ends = (-1 - numbers(TOTAL, 1).abs()).split(COUNTS), iter(FINISHES)
    rows = iter(behav)
    groups = [[Generation([7] * n, next(rows).tolist(), next(ends)) for n in ns] for ns in LENGTHS]
    made = single_turn([[1, 2], [3]], groups).with_tokens(value=numbers(TOTAL, 2, 0.4))
    return made.with_paths(reward=torch.tensor(REWARDS, dtype=torch.float64), value_end=numbers(6, 3, 0.4))


def gae(value, reward, end, cut, lam):
    """A_t and R_t of one completion, the sum written out."""
    after = [*value[1:], end if cut else 0.0]
    delta = [n - v for n, v in zip(after, value, strict=True)]
    delta[-1] += reward
    advantage = [sum(lam ** (k - t) * delta[k] for k in range(t, len(delta))) for t in range(len(delta))]
    return advantage, [a + v for a, v in zip(advantage, value, strict=True)]


def expected(made, name):
    """Advantages and targets of all tokens, without a tensor operation."""
    values = [v.tolist() for v in made.sampled("value").split(COUNTS)]
    adv, targets = [], []
    for value, reward, end, finish in zip(values, REWARDS, made.paths["value_end"].tolist(), FINISHES, strict=True):
        lam = 0.95 if name == "ppo" else max(0.0, 1 - 1 / (0.05 * len(value)))
        adv += gae(value, reward, end, finish == "length", lam)[0]
        targets += gae(value, reward, end, finish == "length", 0.95 if name == "ppo" else 1.0)[1]
    if name == "ppo":
        mean = sum(adv) / TOTAL
        std = (sum((a - mean) ** 2 for a in adv) / (TOTAL - 1)) ** 0.5
        adv = [(a - mean) / (std + 1e-8) for a in adv]
    return torch.tensor(adv, dtype=torch.float64), torch.tensor(targets, dtype=torch.float64)


def direct(name, lp, behav, ref, adv):
    rho = (lp - behav).exp()
    bounds = (0.8, 1.2) if name == "ppo" else (0.8, 1.28)
    loss = -torch.minimum(rho * adv, rho.clamp(*bounds) * adv).sum() / TOTAL
    if name == "ppo":
        return loss + 0.05 * ((ref - lp) ** 2).sum() / 2 / TOTAL
    right = torch.tensor([r > 0 for r, n in zip(REWARDS, COUNTS, strict=True) for _ in range(n)])
    return loss - 0.1 * lp[right].sum() / right.sum()


@pytest.mark.parametrize("name", ["ppo", "vapo"])
def test_preset_with_a_critic_is_its_paper(name):
    algorithm = bind_algorithm(stage(name), {})
    made = with_weights(algorithm, with_advantages(algorithm, with_dropped(batch(), False), 0), 0, 64)
    adv, targets = expected(made, name)
    torch.testing.assert_close(made.sampled("advantage"), adv, atol=1e-12, rtol=0)
    torch.testing.assert_close(made.sampled("return"), targets, atol=1e-12, rtol=0)
    behav = made.sampled("lp_behav")
    lp = (behav + numbers(TOTAL, 4, 0.3)).requires_grad_()
    supplies = {"lp_T": lp, "lp_behav_T": behav, "lp_ref_T": behav + numbers(TOTAL, 5, 0.2), "advantage_T": adv}
    supplies["log_ratio_T"] = algorithm.ratio.ask(0, supplies)
    loss = (algorithm.policy_loss.ask(0, supplies) * made.sampled("w")).sum()
    for i, term in enumerate(algorithm.loss_terms):
        loss = loss + (term.function.ask(0, supplies) * made.sampled(f"w.{i}")).sum()
    want = direct(name, lp, behav, supplies["lp_ref_T"], adv)
    torch.testing.assert_close(loss, want, atol=1e-12, rtol=0)
    got_grad, want_grad = (torch.autograd.grad(x, lp)[0] for x in (loss, want))
    torch.testing.assert_close(got_grad, want_grad, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["ppo", "vapo"])
def test_the_critics_loss_is_its_papers(name):
    loss_of = bind(stage(name).critic.loss)
    old, target = numbers(50, 6), numbers(50, 7)
    value = (old + numbers(50, 8, 0.3)).requires_grad_()
    loss = loss_of.ask(0, {"value_T": value, "value_old_T": old, "return_T": target})
    want = (value - target) ** 2 / 2
    if name == "ppo":
        held = torch.minimum(torch.maximum(value, old - 0.2), old + 0.2)
        want = torch.maximum(want, (held - target) ** 2 / 2)
    torch.testing.assert_close(loss, want, atol=1e-12, rtol=0)
    got_grad, want_grad = (torch.autograd.grad(x.sum(), value)[0] for x in (loss, want))
    torch.testing.assert_close(got_grad, want_grad, atol=1e-12, rtol=0)


def test_vapo_warms_its_critic_up(tiny_policy):
    warmed = Critic(stage("vapo").critic, tiny_policy, stage("vapo"), {}, 0)
    assert [warmed.is_warming_up(step) for step in (0, 49, 50)] == [True, True, False]
    assert not Critic(stage("ppo").critic, tiny_policy, stage("ppo"), {}, 0).is_warming_up(0)
