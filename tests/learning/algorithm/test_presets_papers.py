"""Presets of single papers against their formulas, written out path by path in float64."""

import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_advantages, with_dropped, with_weights


def centred(golden):
    return [r - sum(group) / 4 if max(group) > min(group) else 0.0 for group in golden.rewards for r in group]


def test_mini_rl(golden):
    advantages = centred(golden)
    loss = torch.zeros((), dtype=torch.float64)
    for a, lp, prox, behav in zip(advantages, *(golden.of(c) for c in ("lp", "prox", "behav")), strict=True):
        rho, engine = (lp - prox).exp(), (prox - behav).exp().clamp(max=5.0)
        loss = loss - (engine * torch.minimum(rho * a, rho.clamp(0.8, 1.27) * a)).sum() / 16
    golden.agrees("mini_rl", advantages, loss)


def test_mini_rl_is_reinforce_with_a_stopped_weight(golden):
    _, _, grad = golden.ours("mini_rl")
    advantages = torch.tensor(centred(golden), dtype=torch.float64).repeat_interleave(torch.tensor(golden.counts))
    lp, prox, behav = (golden.columns[name].detach() for name in ("lp", "prox", "behav"))
    r = (lp - prox).exp()
    kept = ~(((advantages > 0) & (r > 1.27)) | ((advantages < 0) & (r < 0.8)))
    want = -kept.double() * r * (prox - behav).exp().clamp(max=5.0) * advantages / 16
    torch.testing.assert_close(grad, want, atol=1e-12, rtol=0)


def test_rl_plus(golden):
    batch, advantages = golden.batch, []
    for group in golden.rewards:
        mean = sum(group) / 4
        deviation = (sum((r - mean) ** 2 for r in group) / 3) ** 0.5
        advantages += [(r - mean) / (deviation + 1e-4) if max(group) > min(group) else 0.0 for r in group]
    expert = [path % 4 == 3 for path in range(16)]
    external = torch.tensor(expert).repeat_interleave(torch.tensor(golden.counts))
    batch = batch.replaced(external=external, lp_behav=batch.sampled("lp_behav").masked_fill(external, 0.0))
    loss = torch.zeros((), dtype=torch.float64)
    paths = zip(expert, advantages, *(golden.of(c) for c in ("lp", "prox", "behav")), strict=True)
    for is_expert, a, lp, prox, behav in paths:
        pi, old = lp.exp(), prox.exp()
        if is_expert:
            per_token = 2 * pi / (old + (old + 1) / 2) * a * (1 - pi.detach()).sqrt()
        else:
            rho = pi / behav.exp()
            per_token = torch.minimum(rho * a, rho.clamp(0.8, 1.2) * a)
        loss = loss - per_token.sum() / sum(golden.counts)
    golden.agrees("rl_plus", advantages, loss, batch)


def test_rover(golden):
    generator = torch.Generator().manual_seed(9)
    mean = -3 + 0.2 * torch.randn(sum(golden.counts), generator=generator, dtype=torch.float64)
    mean_prox = mean + 0.1 * torch.randn(sum(golden.counts), generator=generator, dtype=torch.float64)
    algorithm = bind_algorithm(golden.stage("rover"), {})
    made = with_dropped(golden.batch.with_tokens(lp_mean_prox=mean_prox), False)
    made = with_weights(algorithm, with_advantages(algorithm, made, 0, states={}, rows=[]), 0, golden.max_length)
    lp = golden.columns["lp"]
    columns = view_columns(made, {"lp": lp, "lp_mean": mean})
    loss = (algorithm.policy_loss.ask(0, columns) * columns["w_T"]).sum()
    want = torch.zeros((), dtype=torch.float64)
    values = (mean - mean_prox).split(golden.counts)
    for a, now, prox, value in zip(centred(golden), golden.of("lp"), golden.of("prox"), values, strict=True):
        for t in range(len(now)):
            later = float(value[t + 1]) if t + 1 < len(now) else 0.0
            want = want + (now[t] - prox[t] - (a + later)) ** 2 / sum(golden.counts)
    torch.testing.assert_close(loss, want, atol=1e-12, rtol=0)
    (got,), (direct,) = torch.autograd.grad(loss, lp), torch.autograd.grad(want, lp)
    torch.testing.assert_close(got, direct, atol=1e-12, rtol=0)
