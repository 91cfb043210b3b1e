"""When the feedback on a canary is looked at, what a look decides, and how often it is wrong."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from flows.serving.canary_gate import CanaryGate, compute_look_tail, is_due, look, read_share
from schemas.errors import PlanError


def zeros_and_ones(ones, n):
    return np.repeat([1.0, 0.0], [ones, n - ones])


def score_bound(wins, n, tail, upper):
    """Where the score test of a share just does not reject, by a search."""
    share, z = wins / n, norm.isf(tail)

    def distance(p):
        return (share - p) ** 2 * n - z**2 * p * (1 - p)

    if upper:
        return 1.0 if share == 1 else brentq(distance, share + 1e-12, 1)
    return 0.0 if share == 0 else brentq(distance, 0, share - 1e-12)


@pytest.mark.parametrize(
    ("champion", "challenger", "min_delta", "verdict"),
    [
        ((60, 100), (90, 100), 0.0, "passed"),
        ((90, 100), (60, 100), 0.0, "stopped"),
        ((700, 1000), (72, 100), 0.0, "open"),
        ((700, 1000), (72, 100), -0.2, "passed"),
        ((600, 1000), (80, 100), 0.4, "stopped"),
    ],
)
def test_a_look_decides_by_newcombes_interval_at_its_share_of_the_error(champion, challenger, min_delta, verdict):
    gate, number = CanaryGate(100, min_delta, 0.9), 2
    made = look(gate, number, zeros_and_ones(*champion), zeros_and_ones(*challenger))
    tail = 0.05 / 6
    (a, n), (b, m) = challenger, champion
    low = a / n - b / m - np.hypot(a / n - score_bound(a, n, tail, False), score_bound(b, m, tail, True) - b / m)
    high = a / n - b / m + np.hypot(score_bound(a, n, tail, True) - a / n, b / m - score_bound(b, m, tail, False))
    assert (made.low, made.high, made.tail) == pytest.approx((low, high, tail), abs=1e-9)
    assert verdict == ("passed" if low >= min_delta else "stopped" if high < min_delta else "open")
    assert made.verdict == verdict
    assert (made.champion_samples, made.challenger_samples) == (champion[1], challenger[1])


def test_all_looks_together_spend_the_error_once():
    gate = CanaryGate(confidence=0.95)
    spent = sum(compute_look_tail(gate, number) for number in range(1, 100_000))
    assert spent == pytest.approx(0.025, rel=1e-4)
    assert spent < 0.025
    assert [is_due(gate, looks, 900, n) for looks, n in ((0, 99), (0, 100), (1, 199), (1, 200))] == [False, True] * 2


@pytest.mark.parametrize("share", [0.5, 0.97])
def test_a_challenger_that_is_no_better_passes_or_stops_no_more_often_than_stated(share):
    """Looks after every 40 clients, ten of them, with nine times as many clients of the champion."""
    gate, rng, times, ends = CanaryGate(min_samples=40, confidence=0.8), np.random.default_rng(1), 400, []
    for _ in range(times):
        champion, challenger = (rng.random(3600) < share) * 1.0, (rng.random(400) < share) * 1.0
        verdicts = [look(gate, k, champion[: 360 * k], challenger[: 40 * k]).verdict for k in range(1, 11)]
        ends.append(next((verdict for verdict in verdicts if verdict != "open"), "open"))
    limit = 0.1 + norm.ppf(0.999) * (0.1 * 0.9 / times) ** 0.5
    assert ends.count("passed") / times <= limit
    assert ends.count("stopped") / times <= limit
    assert "passed" in ends or "stopped" in ends


@pytest.mark.parametrize(("text", "share"), [("10%", 0.1), ("0.1", 0.1), ("50%", 0.5), ("0.5%", 0.005)])
def test_shares(text, share):
    assert read_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["0", "0%", "51%", "1", "-5%", "ten", "", "%", "nan", "inf", "10 %%"])
def test_shares_that_are_refused(text):
    with pytest.raises(PlanError, match=r"give the challenger's share of the clients, up to half of them: 10% or 0\.1"):
        read_share(text)
