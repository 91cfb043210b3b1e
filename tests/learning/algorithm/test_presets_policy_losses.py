"""Presets that differ from GRPO in ratio, surrogate or correction, against their papers' formulas written out."""

import math

import pytest
import torch


def normed(golden):
    """GRPO's advantage of every path, in plain numbers."""
    advantages = []
    for rewards in golden.rewards:
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
        advantages += [(r - mean) / (deviation + 1e-4) if max(rewards) > min(rewards) else 0.0 for r in rewards]
    return advantages


def centred(golden):
    return [r - sum(g) / 4 if max(g) > min(g) else 0.0 for g in golden.rewards for r in g]


def paths(golden, *columns):
    return zip(*(golden.of(column) for column in columns), strict=True)


def clip(rho, a, low, high):
    return -torch.minimum(rho * a, rho.clamp(1 - low, 1 + high) * a)


def total(golden):
    return sum(golden.counts)


def test_preset_gspo_token_has_the_value_of_gspo_and_the_tokens_gradient(golden):
    adv, loss = normed(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        s = (lp - behav).mean().exp().detach() * (lp - lp.detach()).exp()
        loss = loss + clip(s, a, 3e-4, 4e-4).mean() / 16
    golden.agrees("gspo_token", adv, loss)
    torch.testing.assert_close(golden.ours("gspo")[2], golden.ours("gspo_token")[2], atol=1e-12, rtol=0)


def test_preset_cispo_weighs_the_logarithm(golden):
    adv, loss = normed(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        loss = loss - ((lp - behav).detach().exp().clamp(max=5.0) * a * lp).sum() / total(golden)
    golden.agrees("cispo", adv, loss)
    loss = 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        loss = loss - ((lp - behav).detach().exp().clamp(0.8, 1.2) * a * lp).sum() / total(golden)
    golden.agrees("cispo", adv, loss, policy_loss={"use": "cispo", "epsilon": 0.2, "epsilon_high": 0.2})


def test_preset_sapo_soft_adaptive_gates_softly(golden):
    adv, loss = normed(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        tau, rho = (1.0 if a > 0 else 1.05), (lp - behav).exp()
        loss = loss - (4 / tau / (1 + torch.exp(-tau * (rho - 1))) * a).mean() / 16
    golden.agrees("sapo_soft_adaptive", adv, loss)


def test_preset_gmpo_takes_the_geometric_mean_of_clipped_ratios(golden):
    adv, loss = normed(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        sgn = 1 if a > 0 else -1
        # The paper's form: the smaller of ρ^sgn(A) and its clipped value, the product's root, and back.
        powered = ((lp - behav) * sgn).exp()
        least = torch.minimum(powered, powered.clamp(math.exp(-0.4), math.exp(0.4)))
        loss = loss - least.prod() ** (sgn / len(lp)) * a / 16
    golden.agrees("gmpo", adv, loss)


def test_preset_topr_tapers_bad_completions_only(golden):
    adv, loss = centred(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        weight = 1.0 if a >= 0 else min(math.exp(float((lp - behav).detach().sum())), 1.0)
        loss = loss - weight * a * lp.sum() / 16
    golden.agrees("topr", adv, loss)


def test_preset_m2po_bounds_the_second_moment(golden):
    adv, loss = normed(golden), 0.0
    squares = ((golden.columns["prox"] - golden.columns["behav"]) ** 2).tolist()
    left = sorted(squares)
    while sum(left) / len(left) > 0.04:
        left.pop()
    assert 0 < len(left) < len(squares)
    kept = iter([s <= left[-1] for s in squares])
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        mask = torch.tensor([float(next(kept)) for _ in lp])
        loss = loss - ((lp - behav).exp() * a * mask).sum() / total(golden)
    golden.agrees("m2po", adv, loss)


@pytest.mark.parametrize("of", ["tv", "kl"])
def test_preset_dppo_masks_by_probability(golden, of):
    adv, loss, masked = normed(golden), 0.0, 0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        p, q = lp.detach().exp(), behav.exp()
        kl = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
        far = ((p - q).abs() if of == "tv" else kl) > (0.15 if of == "tv" else 0.02)
        away = (p > q) if a > 0 else (p < q)
        rho = (lp - behav).exp()
        masked += int((far & away).sum()) if a else 0
        loss = loss - torch.where(far & away, rho.detach(), rho).sum() * a / total(golden)
    assert masked > 0
    limit = 0.15 if of == "tv" else 0.02
    golden.agrees("dppo", adv, loss, policy_loss={"use": "divergence", "of": of, "limit": limit})


def test_preset_vespo_weighs_by_the_sequence(golden):
    adv, loss = normed(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        k, lam = (2, 3) if a >= 0 else (3, 2)
        w = math.exp(float((lp - behav).detach().sum()))
        loss = loss - w**k * math.exp(lam * (1 - w)) * a * lp.sum() / total(golden)
    golden.agrees("vespo", adv, loss)


def test_preset_luspo_weighs_by_length(golden):
    adv, loss = normed(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        s = (lp - behav).mean().exp()
        loss = loss + len(lp) * clip(s, a, 3e-4, 4e-4) / 16
    golden.agrees("luspo", adv, loss)


def test_preset_kimi_regresses_the_log_ratio(golden):
    adv, loss = centred(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        s = lp.sum() - behav.sum()
        loss = loss + (-a * s + 0.5 * s**2) / 16
    golden.agrees("kimi", adv, loss)


def test_preset_dual_clip_bounds_bad_samples(golden):
    adv, loss = normed(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        t = clip((lp - behav).exp(), a, 0.2, 0.2)
        loss = loss + (t.clamp(max=-3 * a) if a < 0 else t).sum() / total(golden)
    golden.agrees("dual_clip", adv, loss)


def test_preset_ppo_decoupled_clips_around_the_proximal_policy(golden):
    adv, loss = normed(golden), 0.0
    for a, (lp, prox, behav) in zip(adv, paths(golden, "lp", "prox", "behav"), strict=True):
        c = (prox - behav).exp().clamp(max=5.0)
        loss = loss + (c * clip((lp - prox).exp(), a, 0.2, 0.2)).sum() / total(golden)
    golden.agrees("ppo_decoupled", adv, loss)


def test_preset_aipo_bounds_the_weight_from_above_alone(golden):
    adv, loss = centred(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        loss = loss - ((lp - behav).exp().detach().clamp(max=2.0) * a * lp).sum() / total(golden)
    golden.agrees("aipo", adv, loss)


def test_preset_clip_cov_spares_a_drawn_share(golden):
    adv = normed(golden)
    a_T = torch.tensor(adv, dtype=torch.float64).repeat_interleave(torch.tensor(golden.counts))
    prox = golden.columns["prox"]
    cov = (prox - prox.mean()) * (a_T - a_T.mean())
    options = {"use": "covariance_drop", "share": 0.05, "low": 0.0, "high": 5.0}
    made = golden.ours("clip_cov", importance_correction=[options])[0]
    factor = made.sampled("factor")
    dropped = (factor == 0).nonzero()[:, 0]
    assert len(dropped) == math.floor(0.05 * total(golden))
    assert bool(((cov[dropped] > 0.0) & (cov[dropped] < 5.0)).all())
    t = clip((golden.columns["lp"] - golden.columns["behav"]).exp(), a_T, 0.2, 0.2)
    golden.agrees("clip_cov", adv, (t * factor).sum() / total(golden), importance_correction=[options])
    assert float(golden.ours("clip_cov")[0].sampled("factor").sum()) == total(golden) - 1


def test_preset_kl_cov_holds_the_highest_covariances(golden):
    adv, share = normed(golden), 0.1
    a_T = torch.tensor(adv, dtype=torch.float64).repeat_interleave(torch.tensor(golden.counts))
    lp, prox, behav = (golden.columns[c] for c in ("lp", "prox", "behav"))
    cov = ((prox - prox.mean()) * (a_T - a_T.mean())).tolist()
    held = sorted(range(len(cov)), key=lambda i: -cov[i])[: math.floor(share * len(cov))]
    loss = -((lp - behav).exp() * a_T).sum() + sum((lp[i] - behav[i]).abs() for i in held)
    term = golden.stage("kl_cov").loss_terms[0].model_dump()
    term["token_mask"] = [{"use": "high_covariance", "share": share}]
    golden.agrees("kl_cov", adv, loss / total(golden), loss_terms=[term])


def test_preset_ttrl_is_grpo_without_a_reference(golden):
    adv, loss = normed(golden), 0.0
    for a, (lp, behav) in zip(adv, paths(golden, "lp", "behav"), strict=True):
        loss = loss + clip((lp - behav).exp(), a, 0.2, 0.2).mean() / 16
    golden.agrees("ttrl", adv, loss)
