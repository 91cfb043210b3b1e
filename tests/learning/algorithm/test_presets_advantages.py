"""Presets that differ from GRPO in the advantage, against their papers' formulas written out in plain numbers."""

import math
from itertools import combinations

import pytest
import torch


def mean(values):
    return sum(values) / len(values)


def deviation(values, unbiased=True):
    return math.sqrt(sum((v - mean(values)) ** 2 for v in values) / (len(values) - unbiased))


def by_group(golden, function, rewards=None):
    """A function from a group's rewards to its advantages, 0 for a group without variance."""
    return [a for g in rewards or golden.rewards for a in (function(g) if max(g) > min(g) else [0.0] * 4)]


def normed(golden, rewards=None):
    return by_group(golden, lambda g: [(r - mean(g)) / (deviation(g) + 1e-4) for r in g], rewards)


def reinforce(golden, adv, length):
    """Mean over sequences of −A·log π of the whole, or mean over all tokens."""
    sums = sum(-a * lp.sum() for a, lp in zip(adv, golden.of("lp"), strict=True))
    return sums / (16 if length is None else length)


def clipped(golden, adv, low=0.2, high=0.2, sequence=False):
    """PPO's clipped loss: mean over all tokens, or over sequences of the mean over tokens."""
    loss = 0.0
    for a, lp, behav in zip(adv, golden.of("lp"), golden.of("behav"), strict=True):
        a = torch.tensor(a, dtype=torch.float64)
        rho = (lp - behav).exp()
        tokens = -torch.minimum(rho * a, rho.clamp(1 - low, 1 + high) * a)
        loss = loss + (tokens.mean() / 16 if sequence else tokens.sum() / sum(golden.counts))
    return loss


def test_preset_reinforce_plus_plus_baseline_normalises_over_the_batch(golden):
    centred = by_group(golden, lambda g: [r - mean(g) for r in g])
    tokens = [a for a, n in zip(centred, golden.counts, strict=True) for _ in range(n)]
    adv = [(a - mean(tokens)) / (deviation(tokens) + 1e-8) for a in centred]
    k2 = (0.5 * (golden.columns["ref"] - golden.columns["lp"]) ** 2).mean()
    golden.agrees("reinforce_plus_plus_baseline", adv, clipped(golden, adv) + 0.01 * k2)


def test_preset_opo_weighs_the_baseline_by_length(golden):
    lengths = iter(golden.lengths)

    def group(rewards):
        ns = next(lengths)
        base = sum(n * r for n, r in zip(ns, rewards, strict=True)) / sum(ns)
        return [r - base for r in rewards] if max(rewards) > min(rewards) else [0.0] * 4

    adv = [a for g in golden.rewards for a in group(g)]
    golden.agrees("opo", adv, reinforce(golden, adv, None))
    # The defining property: advantages weighted by length sum to 0 in every group.
    places = iter(zip(adv, golden.counts, strict=True))
    for _ in golden.rewards:
        assert sum(a * n for a, n in (next(places) for _ in range(4))) == pytest.approx(0, abs=1e-12)


def test_preset_max_rl_divides_by_the_mean(golden):
    adv = by_group(golden, lambda g: [r / mean(g) - 1 for r in g])
    golden.agrees("max_rl", adv, reinforce(golden, adv, None))


def test_preset_gpg_makes_up_for_groups_without_signal(golden):
    adv = [16 / 12 * a for a in by_group(golden, lambda g: [r - mean(g) for r in g])]
    golden.agrees("gpg", adv, reinforce(golden, adv, sum(golden.counts)))


@pytest.mark.parametrize("k", [1, 2])
def test_preset_pass_at_k_is_the_mean_over_all_subsets(golden, k):
    def group(rewards):
        right = [r > 0 for r in rewards]
        subsets = list(combinations(range(4), k))
        passed = [any(right[i] for i in s) for s in subsets]
        share = mean(passed)
        sigma = math.sqrt(share * (1 - share))
        if sigma == 0:
            return [0.0] * 4
        # A completion's advantage is the mean, over the subsets that it is in, of their normalised reward.
        of = [[(p - share) / sigma for s, p in zip(subsets, passed, strict=True) if i in s] for i in range(4)]
        return [mean(a) for a in of]

    adv = [a for g in golden.rewards for a in group(g)]
    loss = clipped(golden, adv, 0.2, 0.28)
    golden.agrees("pass_at_k", adv, loss, advantage=[{"use": "pass_at_k", "k": k}])


def test_preset_best_of_n_rewards_the_lead(golden):
    def group(rewards):
        return [max(rewards) - max(rewards[:i] + rewards[i + 1 :]) for i in range(4)]

    adv = [a for g in golden.rewards for a in group(g)]
    assert sum(a > 0 for a in adv) == 2
    golden.agrees("best_of_n", adv, clipped(golden, adv))


def test_preset_lite_ppo_scales_by_the_batch(golden):
    spread = deviation([r for g in golden.rewards for r in g]) + 1e-6
    adv = [a / spread for a in by_group(golden, lambda g: [r - mean(g) for r in g])]
    golden.agrees("lite_ppo", adv, clipped(golden, adv))


def test_preset_gdpo_normalises_every_reward_by_itself(golden):
    summed = [a + b for a, b in zip(normed(golden), normed(golden, golden.second), strict=True)]
    adv = [(a - mean(summed)) / (deviation(summed) + 1e-4) for a in summed]
    golden.agrees("gdpo", adv, clipped(golden, adv, sequence=True))
    # Weighted, and without the step over the batch, branches of the recipe say the same.
    ops = [{"use": "center"}, {"use": "scale"}]
    branches = [{"of": "exact", "advantage": ops}, {"of": "format", "coef": 0.5, "advantage": ops}]
    one = golden.ours("gdpo", advantage=[{"use": "decoupled", "weights": {"exact": 1.0, "format": 0.5}}])
    two = golden.ours("gdpo", advantage=[], advantage_streams=branches)
    torch.testing.assert_close(one[0].sampled("advantage"), two[0].sampled("advantage"), atol=1e-12, rtol=0)


def test_preset_gtpo_entropy_shares_by_place(golden):
    entropies, adv = iter(golden.of("entropy")), []
    for rewards in golden.rewards:
        rows = [next(entropies).tolist() for _ in rewards]
        shaped = []
        for r, own in zip(rewards, rows, strict=True):
            others = [row for other, row in zip(rewards, rows, strict=True) if other > 0]
            at = [[row[t] for row in others if len(row) > t] for t in range(len(own))]
            gain = [len(a) * h / sum(a) if r > 0 else 0.0 for h, a in zip(own, at, strict=True)]
            shaped.append([r + 0.1 * g for g in gain])
        flat = [v for row in shaped for v in row]
        m, s = mean(flat), deviation(flat) + 1e-4
        adv += [[(v - m) / s for v in row] for row in shaped]
    golden.agrees("gtpo_entropy", adv, clipped(golden, adv, 0.2, 0.28))


def test_preset_grpo_s_shares_by_mean_entropy(golden):
    entropies, adv = iter(golden.of("entropy")), []
    for rewards in golden.rewards:
        means = [float(next(entropies).mean()) for _ in rewards]
        right = [h for r, h in zip(rewards, means, strict=True) if r > 0]
        shaped = [
            r + (0.1 * len(right) * h / sum(right) if r > 0 else 0.0) for r, h in zip(rewards, means, strict=True)
        ]
        adv += [(r - mean(shaped)) / (deviation(shaped) + 1e-4) for r in shaped]
    loss = 0.0
    for a, lp, behav in zip(adv, golden.of("lp"), golden.of("behav"), strict=True):
        w = (lp - behav).exp().mean()
        loss = loss - torch.minimum(w * a, w.clamp(0.8, 1.28) * a) / 16
    golden.agrees("grpo_s", adv, loss)


def test_preset_optimal_token_baseline_weighs_by_gradient_energy(golden):
    energies = []
    for prox, collision in zip(golden.of("prox"), golden.of("collision"), strict=True):
        step = (1 - 2 * prox.exp() + collision).tolist()
        energies.append([sum(step[: t + 1]) for t in range(len(step))])
    adv, paths = [], iter(energies)
    for rewards in golden.rewards:
        rows = [next(paths) for _ in rewards]
        for r, own in zip(rewards, rows, strict=True):
            base = []
            for t in range(len(own)):
                there = [(reward, row[t]) for reward, row in zip(rewards, rows, strict=True) if len(row) > t]
                base.append(sum(g * w for g, w in there) / (sum(w for _, w in there) + 1e-8))
            adv.append([r - b for b in base])
    golden.agrees("optimal_token_baseline", adv, clipped(golden, adv))


def test_preset_oreo_is_the_soft_bellman_error(golden):
    beta, loss, adv, targets = 0.03, 0.0, [], []
    rewards = [r for g in golden.rewards for r in g]
    for r, lp, ref, prox, value in zip(rewards, *(golden.of(c) for c in ("lp", "ref", "prox", "value")), strict=True):
        adv.append([r - v for v in value.tolist()])
        targets += [r - beta * float((prox - ref)[t:].sum()) for t in range(len(lp))]
        fixed = (lp - ref).detach()
        terms = [(value[t] - r + beta * (lp[t] - ref[t]) + beta * fixed[t + 1 :].sum()) ** 2 for t in range(len(lp))]
        loss = loss + sum(terms) / len(lp) / 16
    golden.agrees("oreo", adv, loss)
    assert golden.ours("oreo")[0].sampled("return").tolist() == pytest.approx(targets, abs=1e-12)
