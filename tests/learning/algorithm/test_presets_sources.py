"""Presets whose batches hold more than own samples: an expert's completions, stored ones, resampled groups."""

import dataclasses
import math

import pytest
import torch

from learning.lookup import bind
from learning.samples.sample import SOURCES, Sample
from schemas.use import PolicyLossUse

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
    surrogate = bind(PolicyLossUse.model_validate({"use": "shaped_external", "gamma": 0.1}))
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


def sample(name, group, score):
    row = {"id": name, "prompt": [], "answer": "1", "family": "f", "metadata": "{}"}
    scores = {"exact": score}
    return Sample(row, group, "policy", [1], [7], [-0.5], "stop", "x", versions=[0], scores=scores, reward=score)


def test_preset_rlep_adds_stored_successes_to_every_group(golden):
    adv, loss = [], 0.0
    for rewards in golden.rewards:
        mean = sum(rewards) / 4
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3)
        adv += [(r - mean) / (deviation + 1e-4) if max(rewards) > min(rewards) else 0.0 for r in rewards]
    for a, lp, behav in zip(adv, golden.of("lp"), golden.of("behav"), strict=True):
        rho = (lp - behav).exp()
        loss = loss - torch.minimum(rho * a, rho.clamp(0.8, 1.28) * a).sum() / sum(golden.counts)
    golden.agrees("rlep", adv, loss)
    source, states = bind(golden.stage("rlep").extra_samples[0], "extra_samples.0"), {}

    def visit(group, *scores):
        made = [sample("q", group, score) for score in scores]
        return source.ask(0, {"samples": made, "states": states, "seed": 1})

    assert [t.source for t in visit(0, 1.0, 1.0, 0.0)] == ["policy"] * 3
    later = visit(5, 0.0, 1.0, 0.0)
    assert [t.source for t in later] == ["policy"] * 3 + ["replay"] * 2
    assert [t.reward for t in later[3:]] == [1.0, 1.0]
    assert {t.group for t in later} == {5}


def test_preset_dapo_samples_other_problems_for_groups_without_variance(golden):
    stage = golden.stage("dapo")
    refill = bind(stage.resample[0], "resample.0")
    rows = [sample(name, 0, 0.0).row for name in "abcdefgh"]
    samples = [sample(name, g, s) for g, name in enumerate("abc") for s in ((0.0, 1.0) if name == "b" else (1.0, 1.0))]
    supplies = {"rows": rows, "num_groups": 3, "n": 2, "seed": 1, "states": {}, "round": 0}
    kept, requests = refill.ask(0, {**supplies, "samples": samples})
    assert kept == samples
    assert len(requests) == 2
    assert all(request.n == 2 and request.row["id"] not in "abc" for request in requests)
    new = [sample(request.row["id"], 3 + i, s) for i, request in enumerate(requests) for s in (0.0, 1.0)]
    kept, requests = refill.ask(0, {**supplies, "samples": samples + new, "round": 1})
    assert requests == []
    keep_P = bind(stage.filter_groups, "filter_groups").ask(
        0,
        {
            "scores_P": {"exact": torch.tensor([t.reward for t in kept])},
            "group_P": torch.tensor([t.group for t in kept]),
        },
    )
    assert [t.group for t, keep in zip(kept, keep_P.tolist(), strict=True) if keep] == [1, 1, 3, 3, 4, 4]
