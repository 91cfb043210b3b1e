"""Presets whose batches hold more than own samples: an expert's completions, stored ones, resampled groups."""

import dataclasses
import math

import pytest
import torch

from learning.lookup import bind
from learning.trials import SOURCES
from schemas.use import SurrogateUse

EXPERT = [3, 7, 11, 15]
"""The last path of every group."""


@pytest.fixture
def mixed(golden):
    """The batch with an expert's completion in the place of the last of every group."""
    made = golden.batch
    external = torch.tensor([p in EXPERT for p in made.path_T.tolist()])
    behav = made.sampled("lp_behav").where(~external, 0.0)
    source = torch.tensor([SOURCES.index("expert" if p in EXPERT else "policy") for p in range(16)])
    made = made.replaced(external=external, lp_behav=behav)
    return dataclasses.replace(made, paths={**made.paths, "source": source})


def clip(rho, a):
    return -torch.minimum(rho * a, rho.clamp(0.8, 1.2) * a)


def test_preset_luffy_shapes_the_experts_probability(golden, mixed):
    adv = [r - sum(g) / 4 if max(g) > min(g) else 0.0 for g in golden.rewards for r in g]
    loss = 0.0
    for p, (a, lp, behav) in enumerate(zip(adv, golden.of("lp"), golden.of("behav"), strict=True)):
        tokens = -a * lp.exp() / (lp.exp() + 0.1) if p in EXPERT else clip((lp - behav).exp(), a)
        loss = loss + tokens.sum() / sum(golden.counts)
    golden.agrees("luffy", adv, loss, batch=mixed)


def test_luffys_shaping_lifts_what_the_policy_hardly_knows():
    lp = torch.tensor([0.01, 0.9], dtype=torch.float64).log().requires_grad_()
    surrogate = bind(SurrogateUse.model_validate({"use": "shaped_external", "gamma": 0.1}))
    (plain,) = torch.autograd.grad(-lp.exp().sum(), lp)
    one, external = torch.ones(2).double(), torch.tensor([True, True])
    shaped = surrogate.ask(0, {"log_ratio_T": lp, "advantage_T": one, "external_T": external}).sum()
    (gradient,) = torch.autograd.grad(shaped, lp)
    # d/dlog p of p/(p + γ) is p·γ/(p + γ)²: relative to p itself γ/(p + γ)², large for small p.
    p = lp.detach().exp()
    torch.testing.assert_close(gradient / plain, 0.1 / (p + 0.1) ** 2, atol=1e-12, rtol=0)
    assert float(gradient[0] / plain[0]) > 50 * float(gradient[1] / plain[1])


def test_preset_chord_keeps_two_denominators(golden, mixed):
    adv = []
    for rewards in golden.rewards:
        own = rewards[:3]
        mean = sum(own) / 3
        deviation = math.sqrt(sum((r - mean) ** 2 for r in own) / 2)
        adv += [0.9 * (r - mean) / (deviation + 1e-4) if deviation and max(own) > min(own) else 0.0 for r in rewards]
    own_tokens = sum(n for p, n in enumerate(golden.counts) if p not in EXPERT)
    expert_tokens = sum(golden.counts) - own_tokens
    loss = 0.0
    for p, (a, lp, behav) in enumerate(zip(adv, golden.of("lp"), golden.of("behav"), strict=True)):
        if p in EXPERT:
            phi = (lp.exp() * (1 - lp.exp())).detach()
            loss = loss - 0.1 * (phi * lp).sum() / expert_tokens
        else:
            loss = loss + clip((lp - behav).exp(), a).sum() / own_tokens
    golden.agrees("chord", adv, loss, batch=mixed)
