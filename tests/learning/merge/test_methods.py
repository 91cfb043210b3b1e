"""Merge methods against numbers worked by hand and direct formulas in float64."""

import math
from fractions import Fraction

import pytest
import torch

from learning.merge.blocks import BLOCK, find_kth_magnitude
from learning.merge.methods import (
    dare_linear,
    dare_ties,
    linear,
    passthrough,
    ram,
    ram_plus,
    ram_plus_totals,
    slerp,
    task_arithmetic,
    ties,
)
from schemas.errors import StepError

BASE = torch.tensor([1.0, 1.0, 1.0, 1.0])
A = torch.tensor([2.0, 0.0, 1.1, 1.5])  # differences  1.0 -1.0  0.1  0.5
B = torch.tensor([4.0, 3.0, 1.0, 0.8])  # differences  3.0  2.0  0.0 -0.2


def random(n, seed, dtype=torch.float32):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_linear_by_hand():
    torch.testing.assert_close(linear([A, B], weight=[1.0, 3.0]), torch.tensor([3.5, 2.25, 1.025, 0.975]))
    torch.testing.assert_close(linear([A, B], weight=[1.0, 3.0], normalize=False), torch.tensor([14.0, 9.0, 4.1, 3.9]))


def test_linear_of_equals_is_itself_bit_by_bit():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = random(5000, 0, dtype)
        assert torch.equal(linear([x, x.clone()], weight=[0.2, 0.8]), x)


def test_task_arithmetic_by_hand():
    expected = torch.tensor([1 + 0.5 * (1 + 6), 1 + 0.5 * (-1 + 4), 1 + 0.5 * 0.1, 1 + 0.5 * (0.5 - 0.4)])
    torch.testing.assert_close(task_arithmetic([A, B], BASE, weight=[1.0, 2.0], lambda_=0.5), expected)
    mean = 1 + (torch.tensor([7.0, 3.0, 0.1, 0.1]) / 3)
    torch.testing.assert_close(task_arithmetic([A, B], BASE, weight=[1.0, 2.0], normalize=True), mean)


def test_ties_by_hand():
    # density ½: A keeps 1.0, −1.0; B keeps 3.0, 2.0. Signs: + (4), + (1): A drops out of the second entry.
    kept = ties([A, B], BASE, weight=[1.0, 1.0], density=[0.5, 0.5])
    torch.testing.assert_close(kept, torch.tensor([1 + 2.0, 1 + 2.0, 1.0, 1.0]))
    # all kept, weights 1 and 3: the fourth entry sums to 0.5 − 0.6, so only B is in it
    all_kept = ties([A, B], BASE, weight=[1.0, 3.0])
    torch.testing.assert_close(all_kept, torch.tensor([1 + 10 / 4, 1 + 2.0, 1.1, 0.8]))


def direct_ties(models, base, weights, densities, lam):
    base = base.double()
    deltas = []
    for model, density in zip(models, densities, strict=True):
        delta = model.double() - base
        k = int(density * delta.numel())
        smallest = delta.abs().sort(descending=True).values[k - 1]
        deltas.append(torch.where(delta.abs() >= smallest, delta, 0))
    total = sum(w * d for w, d in zip(weights, deltas, strict=True))
    sign = torch.where(total >= 0, 1.0, -1.0).double()
    agree = [torch.sign(w * d) == sign for w, d in zip(weights, deltas, strict=True)]
    mass = sum(w * a for w, a in zip(weights, agree, strict=True))
    mean = sum(w * d * a for w, d, a in zip(weights, deltas, agree, strict=True)) / torch.where(mass == 0, 1.0, mass)
    return base + lam * mean


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_ties_against_the_direct_formula_over_several_blocks(dtype):
    n = BLOCK + 1234
    base, models = random(n, 0, dtype), [random(n, i, dtype) for i in (1, 2, 3)]
    weights, densities = [1.0, 0.5, 2.0], [0.3, 0.9, 0.01]
    got = ties(models, base, weight=weights, density=densities, lambda_=0.7)
    expected = direct_ties(models, base, weights, densities, 0.7).to(dtype)
    if dtype == torch.bfloat16:
        torch.testing.assert_close(got, expected, rtol=2**-7, atol=1e-6)  # one unit in the last place
    else:
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-7)


def rational_ties(models, base, weights, density):
    """TIES of lists of numbers in exact arithmetic; a weight is the decimal number that a recipe writes."""
    deltas = [[Fraction(m) - Fraction(b) for m, b in zip(model, base, strict=True)] for model in models]
    for delta in deltas:
        smallest = sorted((abs(d) for d in delta), reverse=True)[int(density * len(delta)) - 1]
        delta[:] = [d if abs(d) >= smallest else Fraction(0) for d in delta]
    merged = []
    for b, *row in zip(base, *deltas, strict=True):
        votes = [Fraction(w) * d for w, d in zip(weights, row, strict=True)]
        sign = 1 if sum(votes) >= 0 else -1
        agreeing = [(v, Fraction(w)) for v, w in zip(votes, weights, strict=True) if v * sign > 0]
        mass = sum(w for _, w in agreeing)
        merged.append(float(Fraction(b) + (sum(v for v, _ in agreeing) / mass if mass else 0)))
    return torch.tensor(merged, dtype=torch.float64)


def test_ties_of_bfloat16_weights_is_the_formula_in_exact_arithmetic():
    """Weights of 0.02 and steps of training of 0.002: differences are few multiples of a unit, and votes often tie."""
    base = (random(4000, 0, torch.float64) * 0.02).bfloat16()
    one = (base.double() + 0.002 * random(4000, 1, torch.float64)).bfloat16()
    two = (base.double() + 0.003 * random(4000, 2, torch.float64)).bfloat16()
    got = ties([one, two], base, weight=[0.6, 0.4], density=[0.5, 0.5])
    expected = rational_ties([one.tolist(), two.tolist()], base.tolist(), ["0.6", "0.4"], 0.5)
    assert bool(((got.double() - expected).abs() <= 2.0**-8 * expected.abs() + 1e-12).all())
    # Votes that tie exactly are among them; an election by sums in bfloat16 takes another sign in some entries.
    votes = [Fraction("0.6") * (Fraction(x) - Fraction(b)) for x, b in zip(one.tolist(), base.tolist(), strict=True)]
    against = [Fraction("0.4") * (Fraction(x) - Fraction(b)) for x, b in zip(two.tolist(), base.tolist(), strict=True)]
    assert any(v and v == -w for v, w in zip(votes, against, strict=True))
    rounded = 0.6 * (one - base) + 0.4 * (two - base)
    signs = [v + w >= 0 for v, w in zip(votes, against, strict=True)]
    assert signs != (rounded >= 0).tolist()


def test_ties_elects_the_sign_of_votes_that_are_equal_once_they_are_rounded():
    # Of 0.39B elements of a comparison, the one whose result was furthest from mergekit's (docs/merging.md).
    base, one, two = (torch.tensor([x]).bfloat16() for x in (0.00115966796875, -0.0022735596, 0.0062866211))
    deltas = [Fraction(float(x)) - Fraction(float(base)) for x in (one, two)]
    assert Fraction(6, 10) * deltas[0] + Fraction(4, 10) * deltas[1] < 0  # by 9e-6: the mean is that of `one` alone
    merged = ties([one, two], base, weight=[0.6, 0.4], density=[1.0, 1.0])
    assert torch.equal(merged, one)
    votes = torch.stack([one - base, two - base]) * torch.tensor([[0.6], [0.4]]).bfloat16()
    assert float(votes.sum()) == 0.0  # in bfloat16, both are 135 units in the last place: zero elects +, hence `two`


def test_ties_of_one_whole_model_is_that_model():
    base, model = random(999, 0, torch.bfloat16), random(999, 1, torch.bfloat16)
    assert torch.equal(ties([model], base, weight=[1.0], density=[1.0]), model)


def test_ties_does_not_hang_on_the_order_of_models_or_entries():
    base, a, b = random(999, 0), random(999, 1), random(999, 2)
    base[:300] = a[:300] = b[:300] = 0.5
    a[:100] += 1.0
    got = ties([a, b], base, weight=[1.0, 2.0], density=[0.2, 0.4])
    assert torch.equal(got, ties([b, a], base, weight=[2.0, 1.0], density=[0.4, 0.2]))
    order = torch.randperm(999, generator=torch.Generator().manual_seed(3))
    assert torch.equal(got[order], ties([a[order], b[order]], base[order], weight=[1.0, 2.0], density=[0.2, 0.4]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("k", [1, 2, 17, 500, 999, 1000])
def test_kth_magnitude_is_exact(dtype, k):
    x, base = random(1000, 5, dtype), random(1000, 6, dtype)
    wide = torch.float32 if dtype == torch.bfloat16 else torch.float64
    assert find_kth_magnitude(x, base, k) == float(
        (x.to(wide) - base.to(wide)).abs().sort(descending=True).values[k - 1]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_kth_magnitude_is_exact_among_more_equal_values_than_a_block(dtype):
    base = torch.zeros(3 * BLOCK, dtype=dtype)
    x = torch.full_like(base, 3.0)
    x[: BLOCK // 2], x[-5:] = 3.03125, 1.0
    magnitudes = [find_kth_magnitude(x, base, k) for k in (1, BLOCK // 2, BLOCK // 2 + 1, x.numel() - 5, x.numel())]
    assert magnitudes == [3.03125, 3.03125, 3.0, 3.0, 1.0]


def test_slerp_on_the_circle_is_the_angle_between():
    def point(angle):
        return torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)

    for t in (0.0, 0.25, 0.5, 1.0):
        torch.testing.assert_close(slerp([point(1.4)], point(0.2), t=t), point(0.2 + 1.2 * t), rtol=0, atol=1e-15)


def test_slerp_ends_and_parallel_vectors():
    a, b = random(4000, 1), random(4000, 2)
    torch.testing.assert_close(slerp([b], a, t=0.0), a, rtol=0, atol=0)
    torch.testing.assert_close(slerp([b], a, t=1.0), b, rtol=0, atol=0)
    torch.testing.assert_close(slerp([3 * a], a, t=0.25), 1.5 * a)
    torch.testing.assert_close(slerp([a], torch.zeros_like(a), t=0.25), 0.25 * a)
    with pytest.raises(StepError, match="one other model"):
        slerp([a, b], a, t=0.5)


def test_dare_keeps_a_share_and_its_expectation():
    base, model = torch.zeros(200_000), torch.ones(200_000)
    got = dare_linear([model], base, 7, weight=[1.0], density=[0.25])
    assert set(got.unique().tolist()) == {0.0, 4.0}
    assert abs(float(got.mean()) - 1.0) < 5 * math.sqrt(3 / 200_000)
    assert torch.equal(got, dare_linear([model], base, 7, weight=[1.0], density=[0.25]))
    assert not torch.equal(got, dare_linear([model], base, 8, weight=[1.0], density=[0.25]))
    unscaled = dare_linear([model], base, 7, weight=[1.0], density=[0.25], rescale=False)
    assert torch.equal(unscaled * 4, got)


def test_dare_draws_for_each_model_by_itself():
    ones = torch.ones(100_000)
    both = dare_linear([ones, ones], torch.zeros(100_000), 1, weight=[1.0, 1.0], density=[0.5, 0.5], rescale=False)
    shares = [float((both == n).double().mean()) for n in (0.0, 1.0, 2.0)]
    for share, expected in zip(shares, (0.25, 0.5, 0.25), strict=True):
        assert abs(share - expected) < 0.01


def test_dare_without_dropping_is_task_arithmetic_and_ties():
    base, a, b = random(500, 0), random(500, 1), random(500, 2)
    assert torch.equal(
        dare_linear([a, b], base, 3, weight=[0.3, 0.4]), task_arithmetic([a, b], base, weight=[0.3, 0.4])
    )
    expected = ties([a, b], base, weight=[0.3, 0.4], normalize=False)
    assert torch.equal(dare_ties([a, b], base, 3, weight=[0.3, 0.4]), expected)


def test_passthrough_scales():
    assert torch.equal(passthrough([A]), A)
    assert torch.equal(passthrough([A], scale=[2.0]), 2 * A)


def test_senseless_parameters_are_refused():
    with pytest.raises(StepError, match="sum to zero"):
        linear([A, B], weight=[1.0, -1.0])
    with pytest.raises(StepError, match="density"):
        ties([A, B], BASE, weight=[1.0, 1.0], density=[0.5, 1.5])


def test_ram_keeps_what_is_unique_and_averages_what_is_shared():
    base = torch.tensor([5.0, -1.0, 0.5, 2.0])
    a, b = base + torch.tensor([1.0, 0.0, 2.0, 0.0]), base + torch.tensor([0.0, 3.0, 4.0, 0.0])
    torch.testing.assert_close(ram([a, b], base), base + torch.tensor([1.0, 3.0, 3.0, 0.0]))
    assert ram_plus_totals(base, [a, b]) == [1.0, 1.0, 1.0, 1.0]
    plus = ram_plus([a, b], base, [1.0, 1.0, 1.0, 1.0], r=1.2)
    torch.testing.assert_close(plus, base + torch.tensor([1.2, 3.6, 3.0, 0.0]))
    # With r = 1 it is RAM; a third model that changed nothing dilutes nothing.
    assert torch.equal(ram_plus([a, b, base], base, [1.0, 1.0, 1.0, 1.0, 0.0, 0.0], r=1.0), ram([a, b], base))


def test_ram_against_the_direct_formula():
    base, models = random(3000, 0, torch.float64), []
    for seed in (1, 2, 3):
        touched = random(3000, seed + 10) > 0.3
        models.append(base + random(3000, seed, torch.float64) * touched)
    totals = ram_plus_totals(base, models, epsilon=0.2)
    delta_KN = torch.stack(models) - base
    changed_KN = delta_KN.abs() > 0.2
    count_N = changed_KN.sum(0)
    shared_K, unique_K = (changed_KN & (count_N > 1)).sum(1), (changed_KN & (count_N == 1)).sum(1)
    assert totals == torch.stack([shared_K, unique_K], 1).double().flatten().tolist()
    scale_K1 = (1 + 0.5 * (shared_K / unique_K).clamp(max=1)).double()[:, None]
    want = (delta_KN * changed_KN * torch.where(count_N > 1, 1 / count_N.clamp(min=1).double(), scale_K1)).sum(0)
    got = ram_plus(models, base, totals, r=1.5, epsilon=0.2)
    torch.testing.assert_close(got - base, want, rtol=0, atol=1e-12)


def test_ram_plus_of_models_without_unique_or_any_changes():
    base = torch.zeros(2)
    same = torch.tensor([1.0, 0.0])
    # all of a model's changes shared: they are averaged and nothing is left to scale
    assert torch.equal(ram_plus([same, same], base, ram_plus_totals(base, [same, same]), r=1.5), same)
    assert torch.equal(ram_plus([base, base], base, ram_plus_totals(base, [base, base]), r=1.5), base)
