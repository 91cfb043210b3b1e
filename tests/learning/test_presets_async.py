"""The preset for samples of older weights, against its formula."""

import pytest
import torch


@pytest.mark.parametrize("high", [2.0, 1.1])
def test_preset_async_grpo_is_decoupled_and_truncated(golden, high):
    rewards = torch.tensor(golden.rewards, dtype=torch.float64)
    centred = rewards - rewards.mean(1, keepdim=True)
    advantages = (centred / (rewards.std(1, keepdim=True) + 1e-4)).flatten().tolist()
    terms = []
    for advantage, lp, prox, behav in zip(
        advantages, golden.of("lp"), golden.of("prox"), golden.of("behav"), strict=True
    ):
        ratio, weight = (lp - prox).exp(), (prox - behav).exp().clamp(max=high).detach()
        terms.append(-weight * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    more = {} if high == 2.0 else {"importance_correction": [{"use": "token", "high": high}]}
    golden.agrees("async_grpo", advantages, torch.cat(terms).mean(), **more)
