"""Losses of Q and V of tokens: numbers by hand, and gradients that reach only what is learned."""

import pytest
import torch

from learning.algorithm import action_value_losses as losses


def test_an_expectile_weighs_errors_by_their_sign():
    v_T = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    loss_T = losses.expectile(torch.tensor([1.0, -1.0]).double(), v_T, tau=0.7)
    assert loss_T.tolist() == pytest.approx([0.35, 0.15])
    loss_T.sum().backward()
    assert v_T.grad.tolist() == pytest.approx([-0.7, 0.3])


@pytest.mark.parametrize("tau", [0.5, 0.9])
def test_the_minimum_is_the_expectile_of_the_actions_in_the_data(tau):
    """At V the weighted errors above and below cancel: τ·Σ(Q − V)₊ = (1 − τ)·Σ(V − Q)₊."""
    q_T, v = torch.tensor([0.0, 1.0, 4.0]).double(), torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([v], max_iter=100, tolerance_grad=1e-12)

    def closure():
        optimizer.zero_grad()
        loss = losses.expectile(q_T, v.expand(3), tau=tau).sum()
        loss.backward()
        return loss

    for _ in range(20):
        optimizer.step(closure)
    above, below = (q_T - v.detach()).clamp(min=0).sum(), (v.detach() - q_T).clamp(min=0).sum()
    assert float(tau * above) == pytest.approx(float((1 - tau) * below), abs=1e-6)


def test_regressions_have_the_targets_of_their_formulas():
    q_TH = torch.tensor([[0.5, 1.0]], dtype=torch.float64, requires_grad=True)
    reward_T, next_T = torch.tensor([1.0]).double(), torch.tensor([2.0]).double()
    both = (1.3**2 + 0.8**2) / 2
    for function in (losses.bellman, losses.greedy_bellman, losses.reference_bellman):
        assert function(q_TH, reward_T, next_T, gamma=0.4).tolist() == pytest.approx([both])
    losses.bellman(q_TH, reward_T, next_T.requires_grad_(), gamma=0.4).sum().backward()
    assert next_T.grad is None
    assert q_TH.grad.tolist() == [pytest.approx([-1.3, -0.8])]


def test_monte_carlo_targets_are_discounted_sums_within_each_episode():
    reward_T = torch.tensor([0.0, 5.0, 0.0, 1.0, 7.0]).double()
    path_T = torch.tensor([0, 1, 0, 0, 1])
    returns_T = losses.discount_rewards(reward_T, path_T, 0.5)
    assert returns_T.tolist() == pytest.approx([0.25, 8.5, 0.5, 1.0, 7.0])
    loss_T = losses.monte_carlo(torch.zeros(5, 1).double(), reward_T, path_T, gamma=0.5)
    assert loss_T.tolist() == pytest.approx([r**2 / 2 for r in returns_T.tolist()])
    assert losses.discount_rewards(torch.zeros(0), torch.zeros(0).long(), 0.5).shape == (0,)


def test_the_conservative_term_is_the_sum_over_heads():
    q_THV = torch.tensor([[[1.0, 3.0], [0.0, 0.5]]]).double()
    for temperature in (1.0, 0.5):
        nll = sum(-(q_THV[0, h] / temperature).log_softmax(-1)[1] for h in range(2))
        loss_T = losses.conservative(q_THV, q_THV[..., 1], temperature=temperature)
        assert loss_T.tolist() == pytest.approx([float(nll)])
