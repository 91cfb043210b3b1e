import pytest
import torch

from learning.algorithm.composition import bind_algorithm
from learning.algorithm.loss import view_columns, with_advantages, with_dropped, with_weights
from learning.algorithm.policy_losses.soft_bounds import shaped_external, shaped_sources
from learning.algorithm.reward_shaping import source_bonus
from learning.algorithm.token_masks.masks import sources
from learning.batch.batch_layout import forest
from learning.samples.sample import SOURCES, Sample
from schemas.errors import StepError

DOUBLE = {"dtype": torch.float64}
LENGTHS = ((3, 5, 2), (4, 1, 6))
REWARDS = ((0.7, 0.1, 0.4), (0.0, 1.0, 0.25))


def test_remax_is_reinforce_with_the_greedy_reward_as_baseline(golden):
    """Advantage, loss and gradient against a direct formula."""
    generator = torch.Generator().manual_seed(4)
    samples, lps = [], []
    for group, (lengths, rewards) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        for i, (size, reward) in enumerate(zip(lengths, rewards, strict=True)):
            lps.append(-torch.rand(size, generator=generator, **DOUBLE))
            source = "greedy" if i == 2 else "policy"
            filled = {"scores": {"r": reward}, "reward": reward}
            row = {"id": str(group)}
            samples.append(Sample(row, group, source, [1], [7] * size, lps[-1].tolist(), "stop", "", **filled))
    behav = [lp for lp, t in zip(lps, samples, strict=True) if t.source == "policy"]
    ref = [lp - 0.3 * torch.rand(len(lp), generator=generator, **DOUBLE) for lp in behav]
    how = bind_algorithm(golden.stage("remax"), {})
    made = with_dropped(forest(samples), False).with_tokens(lp_ref=torch.cat(ref))
    made = with_weights(how, with_advantages(how, made, 0), 0, 9)
    lp = torch.cat(behav).requires_grad_()
    columns = view_columns(made, {"lp": lp, "entropy": torch.zeros_like(lp)})
    columns["log_ratio_T"] = how.ratio.ask(0, columns)
    got = (how.policy_loss.ask(0, columns) * columns["w_T"]).sum()
    sampled = [(g, i) for g in range(2) for i in range(2)]
    want, parts = torch.zeros((), **DOUBLE), lp.split([len(b) for b in behav])
    for (g, i), part, mine, other in zip(sampled, parts, behav, ref, strict=True):
        advantage = REWARDS[g][i] - 0.05 * float((mine - other).sum()) - REWARDS[g][2]
        want = want - advantage * part.sum() / len(sampled)
    assert got.item() == pytest.approx(want.item(), abs=1e-12)
    for a, b in zip(torch.autograd.grad(got, lp), torch.autograd.grad(want, lp), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_a_bonus_is_for_right_completions_of_its_sources():
    source_P = torch.tensor([SOURCES.index(s) for s in ("policy", "in_context", "in_context", "expert")])
    reward_P, scores_P = torch.tensor([1.0, 1.0, 0.5, 1.0]), {"exact": torch.tensor([1.0, 1.0, 0.5, 1.0])}
    got = source_bonus(reward_P, scores_P, source_P, of=["in_context"], weight=0.25)
    assert got.tolist() == [1.0, 1.25, 0.5, 1.0]
    got = source_bonus(reward_P, scores_P, source_P, of=["in_context", "expert"], at_least=0.5, weight=0.25)
    assert got.tolist() == [1.0, 1.25, 0.75, 1.25]
    with pytest.raises(StepError, match="no reward 'exakt'"):
        source_bonus(reward_P, scores_P, source_P, of=["expert"], where="exakt")


def test_the_shape_is_that_of_an_experts_tokens_at_those_of_the_named_sources():
    log_ratio_T, advantage_T = torch.linspace(-1, 1, 9, **DOUBLE), torch.linspace(-2, 3, 9, **DOUBLE)
    source_T = torch.arange(9) % len(SOURCES)
    got = shaped_sources(log_ratio_T, advantage_T, source_T, of=["in_context", "hinted"], gamma=0.2)
    chosen_T = sources(source_T, keep=["in_context", "hinted"])
    assert chosen_T.any()
    want = shaped_external(log_ratio_T, advantage_T, chosen_T, gamma=0.2)
    torch.testing.assert_close(got, want, atol=0, rtol=0)
