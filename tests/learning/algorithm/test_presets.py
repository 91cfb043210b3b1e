"""Every preset: its advantages, its loss and its gradient against the paper's formula, written out in float64."""

from pathlib import Path

import pytest
import torch
import yaml

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import with_advantages, with_dropped, with_weights
from learning.batch.batch_layout import single_turn
from learning.samples.engine_protocol import Generation
from schemas.stages.rl import Rl

PRESETS = Path(__file__).parents[3] / "recipes" / "algorithms"
NAMES = ["dapo", "dr_grpo", "grpo", "gspo", "ppo_clip", "reinforce_plus_plus", "rloo"]
LENGTHS = [[3, 7, 1, 4], [2, 2, 6, 5], [4, 4, 4, 4]]
REWARDS = [[1.0, 0.0, 0.3, 1.0], [0.0, 0.0, 1.0, 0.5], [0.1, 0.1, 0.1, 0.1]]
MAX_LENGTH = 9


def stage(name, **more):
    preset = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
    return Rl.model_validate(
        {"kind": "rl", "model": "m", "prompts": "p", "rewards": ["x.y"], "max_steps": 1, **preset, **more}
    )


def batch():
    """Three groups of four ragged completions with rewards, and log-probabilities on both sides of the clip."""
    generator = torch.Generator().manual_seed(3)
    groups = [
        [Generation(list(range(n)), (-torch.rand(n, generator=generator).double() - 0.2).tolist(), "stop") for n in ns]
        for ns in LENGTHS
    ]
    made = single_turn([[1, 2], [3], [4, 5, 6]], groups)
    return made.with_paths(reward=torch.tensor(REWARDS, dtype=torch.float64).flatten())


def columns(made):
    generator = torch.Generator().manual_seed(4)
    behav = made.sampled("lp_behav")
    lp = (behav + 0.4 * torch.randn(len(behav), generator=generator).double()).requires_grad_()
    ref = behav + 0.2 * torch.randn(len(behav), generator=generator).double()
    return lp, behav, ref


def ours(name):
    algorithm = bind_algorithm(stage(name), {})
    made = with_weights(algorithm, with_advantages(algorithm, with_dropped(batch(), False), 0), 0, MAX_LENGTH)
    lp, behav, ref = columns(made)
    supplies = {"lp_T": lp, "lp_behav_T": behav, "lp_ref_T": ref, "path_T": made.path_T}
    supplies["advantage_T"] = made.sampled("advantage")
    supplies["log_ratio_T"] = algorithm.ratio.ask(0, supplies)
    loss = (algorithm.policy_loss.ask(0, supplies) * made.sampled("w")).sum()
    for i, term in enumerate(algorithm.loss_terms):
        loss = loss + (term.function.ask(0, supplies) * made.sampled(f"w.{i}")).sum()
    return supplies["advantage_T"], loss, torch.autograd.grad(loss, lp)[0]


def clip(rho, a, low, high):
    return -torch.minimum(rho * a, rho.clamp(1 - low, 1 + high) * a)


def group_norm(rewards):
    out = []
    for r in torch.tensor(rewards, dtype=torch.float64):
        n = len(r)
        mean = sum(float(x) for x in r) / n
        std = (sum((float(x) - mean) ** 2 for x in r) / (n - 1)) ** 0.5
        out.append([(float(x) - mean) / (std + 1e-4) if max(r) > min(r) else 0.0 for x in r])
    return out


def direct(name, sequences):
    """Advantage of each sequence and the loss, from lists of (lp, behav, ref) per sequence in group order."""
    flat = [r for group in REWARDS for r in group]
    counts = [len(lp) for lp, _, _ in sequences]
    total, n = sum(counts), len(flat)
    grpo = [a for group in group_norm(REWARDS) for a in group]
    if name in ("grpo", "dapo", "gspo"):
        adv = grpo
    elif name == "dr_grpo":
        adv = [r - sum(g) / 4 if max(g) > min(g) else 0.0 for g in REWARDS for r in g]
    elif name == "rloo":
        adv = [r - (sum(g) - r) / 3 if max(g) > min(g) else 0.0 for g in REWARDS for r in g]
    elif name == "ppo_clip":
        mean = sum(flat) / n
        std = (sum((r - mean) ** 2 for r in flat) / (n - 1)) ** 0.5
        adv = [(r - mean) / (std + 1e-8) for r in flat]
    else:
        mean = sum(r * c for r, c in zip(flat, counts, strict=True)) / total
        std = (sum(c * (r - mean) ** 2 for r, c in zip(flat, counts, strict=True)) / (total - 1)) ** 0.5
        adv = [(r - mean) / (std + 1e-8) for r in flat]
    loss = torch.zeros((), dtype=torch.float64)
    for a, c, (lp, behav, ref) in zip(torch.tensor(adv, dtype=torch.float64), counts, sequences, strict=True):
        rho, d = (lp - behav).exp(), ref - lp
        if name == "grpo":
            loss = loss + (clip(rho, a, 0.2, 0.2) + 0.04 * (d.exp() - d - 1)).sum() / c / n
        elif name == "dr_grpo":
            loss = loss + clip(rho, a, 0.2, 0.2).sum() / MAX_LENGTH / n
        elif name == "dapo":
            loss = loss + clip(rho, a, 0.2, 0.28).sum() / total
        elif name == "rloo":
            loss = loss - a * lp.sum() / n
        elif name == "reinforce_plus_plus":
            loss = loss + (clip(rho, a, 0.2, 0.2) + 0.01 * 0.5 * d**2).sum() / total
        elif name == "ppo_clip":
            per_token = clip(rho, a, 0.2, 0.28)
            loss = loss + (torch.minimum(per_token, -3 * a) if a < 0 else per_token).sum() / total
        else:
            s = (lp - behav).mean().exp()
            loss = loss + clip(s, a, 3e-4, 4e-4) / n
    return adv, loss


@pytest.mark.parametrize("name", NAMES)
def test_preset_is_its_paper(name):
    made = batch()
    lp, behav, ref = columns(made)
    counts = [n for group in LENGTHS for n in group]
    sequences = list(zip(lp.split(counts), behav.split(counts), ref.split(counts), strict=True))
    adv, want = direct(name, sequences)
    got_adv, got, got_grad = ours(name)
    per_token = torch.tensor(adv, dtype=torch.float64).repeat_interleave(torch.tensor(counts))
    torch.testing.assert_close(got_adv, per_token, atol=1e-12, rtol=0)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
    torch.testing.assert_close(got_grad, torch.autograd.grad(want, lp)[0], atol=1e-12, rtol=0)
