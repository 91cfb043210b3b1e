"""Further terms of the loss: values by hand, gradients against the exact ones of a small categorical."""

import pytest
import torch

from learning.algorithm import loss_terms as components

GENERATOR = torch.Generator().manual_seed(5)
LOGITS, TEACHER, BEHAVIOUR = torch.randn(3, 6, generator=GENERATOR, dtype=torch.float64)
TOKENS = torch.arange(6)


def gradient(loss_of):
    """Gradient of a loss of the log-probabilities of six tokens by the logits."""
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(loss_of(logits.log_softmax(0)), logits)[0]


def forward_kl(lp, other):
    return (other.exp() * (other - lp)).sum()


def reverse_kl(lp, other):
    return (lp.exp() * (lp - other)).sum()


@pytest.mark.parametrize("behaviour", [LOGITS, BEHAVIOUR])
def test_distillation_at_the_sampled_token_has_the_gradient_of_the_full_one(behaviour):
    teacher, behav = TEACHER.log_softmax(0), behaviour.log_softmax(0)
    for term, full in ((components.distil_reverse, reverse_kl), (components.distil_forward, forward_kl)):
        got = gradient(lambda lp, term=term: (behav.exp() * term(lp, teacher, behav)).sum())
        torch.testing.assert_close(got, gradient(lambda lp, full=full: full(lp, teacher)), atol=1e-14, rtol=0)


def test_the_value_of_reverse_distillation_is_the_divergence():
    lp, teacher = LOGITS.log_softmax(0), TEACHER.log_softmax(0)
    value = (lp.exp() * components.distil_reverse(lp, teacher, lp)).sum()
    torch.testing.assert_close(value, reverse_kl(lp, teacher), atol=1e-14, rtol=0)


def test_kl_convex_mixes_two_anchors():
    lp = torch.tensor([-1.0], dtype=torch.float64)
    got = components.kl_convex(lp, lp - 0.4, lp - 0.2, lam=0.25, estimator="k1")
    assert got.item() == pytest.approx(0.25 * 0.4 + 0.75 * 0.2, abs=1e-15)
    for lam, anchor in ((1.0, -1.4), (0.0, -1.2)):
        k3 = components.kl_convex(lp, lp - 0.4, lp - 0.2, lam=lam).item()
        r = torch.tensor(anchor + 1.0, dtype=torch.float64)
        assert k3 == pytest.approx(float(r.expm1() - r), abs=1e-15)


def test_kl_convex_gradient_is_the_convex_mix_of_gradients():
    base, previous = TEACHER.log_softmax(0), BEHAVIOUR.log_softmax(0)
    fixed = LOGITS.log_softmax(0)
    mixed = gradient(lambda lp: (fixed.exp() * components.kl_convex(lp, base, previous, lam=0.3, estimator="k2")).sum())
    want = gradient(lambda lp: 0.3 * reverse_kl(lp, base) + 0.7 * reverse_kl(lp, previous))
    torch.testing.assert_close(mixed, want, atol=1e-14, rtol=0)


def test_entropy_band_pushes_back_from_outside_only():
    entropy = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64).requires_grad_()
    loss = components.entropy_band(entropy, low=0.3, high=1.5)
    assert loss.tolist() == pytest.approx([0.2, 0.0, 0.5])
    assert torch.autograd.grad(loss.sum(), entropy)[0].tolist() == [-1.0, 0.0, 1.0]
    value = torch.tensor([0.7], requires_grad=True)
    assert torch.autograd.grad(components.entropy(value).sum(), value)[0].tolist() == [-1.0]


def test_cross_entropies():
    lp = torch.tensor([0.5, 0.9, 0.01], dtype=torch.float64).log().requires_grad_()
    assert torch.autograd.grad(components.cross_entropy(lp).sum(), lp)[0].tolist() == [-1.0, -1.0, -1.0]
    uncertain = torch.autograd.grad(components.cross_entropy_uncertain(lp).sum(), lp)[0]
    assert uncertain.tolist() == pytest.approx([-0.25, -0.09, -0.0099], abs=1e-15)


def test_entropy_smoothing_is_a_constant_outside_of_the_band_around_the_past_mean():
    entropy_T = torch.tensor([0.5, 0.8, 0.9, 1.2, 1.3], dtype=torch.float64, requires_grad=True)
    penalty_T = components.entropy_smoothing(entropy_T, history=1.0)
    assert penalty_T.tolist() == [0.1, 0.0, 0.0, 0.0, 0.1]
    assert not penalty_T.requires_grad
    assert components.entropy_smoothing(entropy_T, history=0.0).tolist() == [0.0] * 5


def test_entropy_smoothing_that_grows_moves_the_entropy_back():
    entropy_T = torch.tensor([0.5, 0.9, 1.5], dtype=torch.float64, requires_grad=True)
    penalty_T = components.entropy_smoothing(entropy_T, history=1.0, penalty=0.2, grows=True)
    torch.testing.assert_close(penalty_T, torch.tensor([0.06, 0.0, 0.06], dtype=torch.float64))
    (gradient_T,) = torch.autograd.grad(penalty_T.sum(), entropy_T)
    assert gradient_T.tolist() == pytest.approx([-0.2, 0.0, 0.2])
