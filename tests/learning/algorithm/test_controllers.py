"""Controllers: each against its formula, with what it remembers."""

import json
import math

import pytest
import torch

from learning.algorithm.controllers import (
    adaptive_kl,
    bapo,
    compute_positive_share,
    entropy_gated,
    entropy_target,
    past_mean,
    pid,
    recap,
)
from schemas.errors import StepError


def run(controller, points, **options):
    """What a controller says to each iteration's points; its memory goes through JSON in between."""
    state, metrics = {}, []
    for point in points:
        metrics.append(controller(point, state, **options))
        state = json.loads(json.dumps(state))
    return metrics


def test_adaptive_kl_follows_ziegler():
    points = [{}, {"kl": 9.0}, {"kl": 6.3}, {"kl": 0.0}, {"reward": 1.0}]
    want = [0.2, 0.2 * 1.02, 0.2 * 1.02 * 1.005, 0.2 * 1.02 * 1.005 * 0.98, 0.2 * 1.02 * 1.005 * 0.98]
    assert run(adaptive_kl, points, target=6.0) == pytest.approx(want, rel=1e-12)


def test_pid_is_the_sum_of_its_three_terms():
    points = [{"x": v} for v in (1.0, 3.0, 2.0)]
    values = run(pid, [{}, *points], metric="x", target=1.0, initial=0.5, kp=0.1, ki=0.01, kd=0.2, low=-9.0, high=9.0)
    assert values == pytest.approx(
        [0.5, 0.5, 0.5 + 0.1 * 2 + 0.01 * 2 + 0.2 * 2, 0.5 + 0.1 * 1 + 0.01 * 3 - 0.2 * 1], rel=1e-12
    )


def test_pid_of_a_change_starts_at_the_second_point():
    points = [{"reward": 0.2}, {"reward": 0.5}, {"reward": 0.4}]
    assert run(pid, points, metric="reward", of="change", initial=0.3, kp=1.0) == pytest.approx([0.3, 0.6, 0.2])


def test_pid_stays_in_its_range_and_recovers_immediately():
    points = [{"x": 10.0}] * 50 + [{"x": -1.0}] * 2
    values = run(pid, points, metric="x", ki=0.1, low=0.0, high=1.0)
    assert max(values) == 1.0
    assert values[50:] == pytest.approx([0.9, 0.8])  # if the sum still grew, these would be 1
    with pytest.raises(StepError, match="low 2"):
        pid({}, {}, metric="x", low=2.0, high=1.0)


def test_pid_of_a_moving_average_with_a_limited_sum():
    points = [{"reward": 0.0}, {"reward": 1.0}, {"reward": 1.0}]
    options = {"metric": "reward", "of": "change", "decay": 0.75, "target": 0.05, "low": -9.0, "high": 9.0}
    # Averages 0, 0.25, 0.4375: changes 0.25 and 0.1875, errors 0.2 and 0.1375.
    assert run(pid, points, kp=1.0, **options) == pytest.approx([0.0, 0.2, 0.1375])
    assert run(pid, points, ki=1.0, **options) == pytest.approx([0.0, 0.2, 0.3375])
    assert run(pid, points, ki=1.0, sum_limit=0.25, **options) == pytest.approx([0.0, 0.2, 0.25])
    falling = [{"reward": -p["reward"]} for p in points]
    assert run(pid, falling, ki=1.0, sum_limit=0.25, **options) == pytest.approx([0.0, -0.25, -0.25])


def test_entropy_coefficient_leaves_zero_again():
    low, high = {"entropy": 0.1}, {"entropy": 0.5}
    values = run(entropy_target, [{}, high, high, low, low, high, low], target=0.2, rate=0.01, initial=0.01)
    assert values == pytest.approx([0.01, 0.0, 0.0, 0.01, 0.02, 0.0, 0.02])
    assert run(entropy_target, [low] * 400, rate=0.005, high=1.0)[-1] == 1.0


def test_entropy_gate_of_safe():
    # Factor 2.0 at H = 0.9 and 0.5 at H = 3.9; nothing below the threshold.
    for entropy, factor in ((0.9, 2.0), (3.9, 0.5), (50.0, 0.5)):
        (value,) = run(entropy_gated, [{"kl": 0.7, "entropy": entropy}], threshold=0.3)
        assert value == pytest.approx(0.1 * 0.4**2 * factor, rel=1e-12)
    assert run(entropy_gated, [{}, {"kl": 0.3, "entropy": 0.9}], threshold=0.3) == [0.0, 0.0]
    average = run(entropy_gated, [{"kl": 0.5, "entropy": 0.9}, {"kl": 1.5, "entropy": 0.9}], threshold=0.3, decay=0.9)
    assert average[1] == pytest.approx(0.1 * 0.3**2 * 2.0, rel=1e-12)
    late = run(entropy_gated, [{"kl": 2.0, "entropy": 0.9}, {"kl": 4.0, "entropy": 0.9}], threshold=0.3, start=0.0)
    assert late == pytest.approx([0.0, 0.1 * (0.9 * 0.2 + 0.4 - 0.3) ** 2 * 2.0], rel=1e-12)


def test_the_slope_of_the_gate_is_its_derivative():
    for kl, entropy in ((0.7, 0.9), (1.3, 3.9), (0.31, 0.0)):
        h = 1e-6
        high, low = (run(entropy_gated, [{"kl": x, "entropy": entropy}])[0] for x in (kl + h, kl - h))
        (slope,) = run(entropy_gated, [{"kl": kl, "entropy": entropy}], give="slope")
        assert slope == pytest.approx((high - low) / (2 * h), rel=1e-5)
    assert run(entropy_gated, [{"kl": 0.2, "entropy": 0.9}], give="slope") == [0.0]


def window(mean, before, spread, size=4):
    """Losses of two windows with given means and the deviation of the later."""
    return [before] * size + [mean - spread, mean + spread] * (size // 2)


def weights_of(losses, **options):
    """RECAP's weight of each objective after a series of losses; a point is 1 − loss."""
    points = [dict(zip(losses, (1 - x for x in xs), strict=True)) for xs in zip(*losses.values(), strict=True)]
    best = dict.fromkeys(losses, 1.0)
    return {n: run(recap, points, objective=n, best=best, **options)[-1] for n in losses}


def test_recap_weights_in_closed_form():
    losses = {"accuracy": window(0.8, 0.8, 0.2), "format": window(0.1, 0.2, 0.01)}
    weights = weights_of(losses, window=4, temperature=5.0)
    share = 1 / (1 + math.exp((0.5 + 0.01 / 0.3 - 1.125) / 5))
    assert weights["accuracy"] == pytest.approx(2 * share, rel=1e-9)
    assert [round(w, 3) for w in weights.values()] == [1.059, 0.941]
    assert sum(weights.values()) / 2 == pytest.approx(1.0, abs=1e-12)


def test_recap_waits_for_two_windows_and_knows_its_objectives():
    points = [{"a": 0.5, "b": 0.1 * i} for i in range(9)]
    values = run(recap, points, objective="a", best={"a": 1.0, "b": 1.0}, window=4)
    assert values[:7] == [1.0] * 7
    assert values[7] != 1.0
    with pytest.raises(StepError, match="objective 'c'"):
        recap({}, {}, objective="c", best={"a": 1.0})
    done = weights_of({"a": [0.5] * 8, "b": [0.0] * 8}, window=4, temperature=1.0)
    assert done["b"] == pytest.approx(2 / (1 + math.e))


def tokens(ratios, advantages):
    behav = torch.full((len(ratios),), -2.0, dtype=torch.float64)
    return behav + torch.tensor(ratios, dtype=torch.float64).log(), behav, torch.tensor(advantages, dtype=torch.float64)


def test_bapo_raises_the_upper_bound_until_the_shares_balance():
    batch = tokens([2.0, 0.95, 0.68], [1.0, -1.0, -1.0])
    how = {"low": [0.6, 0.6], "high": [1.2, 3.0], "high_step": 0.05}
    assert bapo(*batch, give="epsilon_high", **how) == pytest.approx(0.65, abs=1e-12)
    assert bapo(*batch, give="epsilon", **how) == pytest.approx(0.4, abs=1e-12)
    ratio = (batch[0] - batch[1]).exp()
    assert compute_positive_share(ratio, batch[2], 0.6, 1.2) == pytest.approx(1.2 / 2.83, abs=1e-12)
    assert (
        compute_positive_share(ratio, batch[2], 0.6, 1.60) < 0.5 <= compute_positive_share(ratio, batch[2], 0.6, 1.65)
    )


@pytest.mark.parametrize("first", ["low", "high"])
def test_bapo_leaves_balance_alone_and_stops_at_the_ends(first):
    how = {"low": [0.6, 0.9], "high": [1.2, 3.0], "low_step": 0.04, "high_step": 0.07, "first": first}
    even = tokens([1.0, 1.0], [1.0, -1.0])
    assert [bapo(*even, give=g, **how) for g in ("epsilon", "epsilon_high")] == pytest.approx([0.4, 0.2])
    hopeless = tokens([1.0, 1.0], [0.1, -1.0])
    assert [bapo(*hopeless, give=g, **how) for g in ("epsilon", "epsilon_high")] == pytest.approx([0.1, 2.0])


def test_bapo_order_of_the_bounds():
    batch = tokens([2.0, 0.96, 0.68], [1.0, -1.0, -1.0])
    how = {"low": [0.6, 0.75], "low_step": 0.05, "high_step": 0.05}
    low_first = [bapo(*batch, give=g, first="low", **how) for g in ("epsilon", "epsilon_high")]
    high_first = [bapo(*batch, give=g, first="high", **how) for g in ("epsilon", "epsilon_high")]
    assert low_first == pytest.approx([0.25, 0.75])
    assert high_first == pytest.approx([0.4, 0.65])
    with pytest.raises(StepError, match="must rise"):
        bapo(*batch, give="epsilon", low=[0.9, 0.6])


def test_past_mean_is_over_all_iterations_or_the_last_ones():
    points = [{}, {"entropy": 1.0}, {"reward": 5.0}, {"entropy": 2.0}, {"entropy": 6.0}]
    assert run(past_mean, points) == [0.0, 1.0, 1.0, 1.5, 3.0]
    assert run(past_mean, points, window=2) == [0.0, 1.0, 1.0, 1.5, 4.0]
    assert run(past_mean, [{"x": 3.0}], metric="x") == [3.0]
