"""The error rates that gates state: closed forms, direct computation, and a thousand simulated evaluations each."""

from math import comb

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm, t

from learning.evaluation.evaluation import Scores
from learning.evaluation.gate_questions import list_questions
from learning.evaluation.gate_statistics import check_gates, judge_gates
from learning.evaluation.paired_tests import (
    compute_bootstrap_bounds,
    compute_mcnemar_p,
    compute_mcnemar_power,
    estimate_noise_floor,
    find_minimum_detectable,
)
from schemas.errors import StepError
from schemas.stages.evaluate import Evaluate

SIMULATIONS = 1000
TAIL = 0.025


def stage(**gate):
    gate = {"against": "old", "on_fail": "warn"} | gate
    return Evaluate(kind="evaluate", models={"old": "a", "new": "b"}, prompts="p", num_bootstrap=1000, gate=[gate])


def paired(rng, n, gained, lost, both=0.4):
    """Right or wrong of two models on n problems, drawn from the probabilities of the four cases."""
    case = rng.choice(4, n, p=[gained, lost, both, 1 - gained - lost - both])
    return ((case == 1) | (case == 2)).astype(float)[:, None], ((case == 0) | (case == 2)).astype(float)[:, None]


def judged(made, old, new):
    (outcome,) = judge_gates(made, Scores({"old": old, "new": new}, ["f"] * len(old)), 0)
    return outcome


@pytest.fixture
def quick(monkeypatch):
    """Without the smallest detectable difference, which is told beside a verdict and no part of it."""
    monkeypatch.setattr("learning.evaluation.gate_statistics.find_minimum_detectable", lambda *args, **more: None)


def rate_of_failing(made, n, gained, lost, seed):
    rng = np.random.default_rng(seed)
    return np.mean([not judged(made, *paired(rng, n, gained, lost))["passed"] for _ in range(SIMULATIONS)])


def at_most(rate, stated):
    """Whether a rate seen in the simulations is what a true rate of at most `stated` gives (1 in 1000 otherwise)."""
    return rate <= binom.ppf(0.999, SIMULATIONS, stated) / SIMULATIONS


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (5, 0), (6, 0), (9, 2), (2, 9), (31, 17)])
def test_mcnemar_is_the_sum_over_coins(wins, losses):
    n = wins + losses
    assert compute_mcnemar_p(wins, losses) == pytest.approx(
        sum(comb(n, k) for k in range(wins, n + 1)) / 2**n, rel=1e-12
    )
    assert compute_mcnemar_p(wins, losses) == pytest.approx(
        binomtest(wins, max(n, 1), alternative="greater").pvalue if n else 1
    )


def test_power_of_mcnemar_is_the_sum_over_all_outcomes():
    n, discordance, difference = 12, 0.6, 0.35
    gained, lost = (discordance + difference) / 2, (discordance - difference) / 2
    seen = 0.0
    for wins in range(n + 1):
        for losses in range(n + 1 - wins):
            if compute_mcnemar_p(wins, losses) <= TAIL:
                ways = comb(n, wins) * comb(n - wins, losses)
                seen += ways * gained**wins * lost**losses * (1 - discordance) ** (n - wins - losses)
    assert compute_mcnemar_power(n, discordance, difference, TAIL) == pytest.approx(seen, rel=1e-10)
    assert compute_mcnemar_power(n, discordance, 0.0, TAIL) <= TAIL


def test_the_smallest_detectable_difference_has_its_power():
    difference = find_minimum_detectable(300, TAIL, spread=0.5, test="mcnemar")
    assert compute_mcnemar_power(300, 0.25, difference, TAIL) == pytest.approx(0.8, abs=5e-3)
    by_hand = (t.ppf(0.975, 299) + norm.ppf(0.8)) * 0.5 / np.sqrt(300)
    assert find_minimum_detectable(300, TAIL, spread=0.5) == pytest.approx(by_hand, rel=1e-12)
    assert difference == pytest.approx(by_hand, rel=0.1)
    floored = find_minimum_detectable(300, TAIL, spread=0.5, floor=0.2)
    assert floored == pytest.approx(0.2 + norm.ppf(0.8) * 0.5 / np.sqrt(300))
    assert find_minimum_detectable(5, TAIL, spread=1.0, test="mcnemar") is None  # five coins of six never give 1 in 40
    assert find_minimum_detectable(1, TAIL, spread=1.0) is None


def test_bootstrap_bounds_cover_as_stated_and_plain_percentiles_do_not():
    rng, n, covered, plain = np.random.default_rng(5), 20, 0, 0
    for _ in range(SIMULATIONS):
        gain = rng.normal(0.0, 1.0, n)
        low, _ = compute_bootstrap_bounds(gain, 0.05, num_bootstrap=2000, seed=1)
        covered += low <= 0
        means = rng.choice(gain, (400, n)).mean(1)
        plain += np.quantile(means, 0.05) <= 0
    assert at_most(1 - covered / SIMULATIONS, 0.06)
    assert covered > plain
    assert compute_bootstrap_bounds(np.array([1.0]), 0.05, num_bootstrap=100, seed=1) == (float("-inf"), float("inf"))


@pytest.mark.parametrize("test", ["paired_bootstrap", "mcnemar"])
def test_a_regression_inside_the_noise_passes_and_one_outside_does_not(test, quick):
    """False alarms at no difference, and misses at the smallest regression that the gate claims to see."""
    n, discordance = 400, 0.2
    made = stage(max_regression=0, test=test)
    assert at_most(rate_of_failing(made, n, discordance / 2, discordance / 2, 1), TAIL)
    detectable = find_minimum_detectable(n, TAIL, spread=np.sqrt(discordance), test=test)
    gained, lost = (discordance - detectable) / 2, (discordance + detectable) / 2
    assert at_most(1 - rate_of_failing(made, n, gained, lost, 2), 0.2)


@pytest.mark.parametrize("test", ["paired_bootstrap", "mcnemar"])
def test_an_improvement_is_claimed_wrongly_as_stated_and_seldom_missed(test, quick):
    n, discordance = 400, 0.2
    made = stage(min_delta=0, test=test)
    assert at_most(1 - rate_of_failing(made, n, discordance / 2, discordance / 2, 3), TAIL)
    detectable = find_minimum_detectable(n, TAIL, spread=np.sqrt(discordance), test=test)
    gained, lost = (discordance + detectable) / 2, (discordance - detectable) / 2
    assert at_most(rate_of_failing(made, n, gained, lost, 4), 0.2)


def test_non_inferiority_passes_wrongly_as_stated_at_the_margin(quick):
    n, discordance, margin = 400, 0.2, 0.05
    made = stage(min_delta=-margin)
    passed = 1 - rate_of_failing(made, n, (discordance - margin) / 2, (discordance + margin) / 2, 5)
    assert at_most(passed, TAIL)


def test_several_budgets_together_alarm_no_more_often_than_one(quick):
    rng, n = np.random.default_rng(6), 200
    families = [f"f{i % 5}" for i in range(n)]
    made = stage(max_regression={f"accuracy.f{i}": 0.0 for i in range(5)}, confidence=0.9)
    alarms = 0
    for _ in range(SIMULATIONS // 4):
        old, new = paired(rng, n, 0.25, 0.25)
        (outcome,) = judge_gates(made, Scores({"old": old, "new": new}, families), 0)
        alarms += not outcome["passed"]
    assert alarms <= binom.ppf(0.999, SIMULATIONS // 4, 0.05)
    assert [q.tail for q in list_questions(made.gate[0], 0.95)] == [pytest.approx(0.01)] * 5


def test_sampling_noise_is_not_called_a_regression(quick):
    """Two equal models, whose samples differ from seed to seed as much as evaluations of the same problems can."""
    rng, n, samples = np.random.default_rng(7), 60, 2
    made = stage(max_regression=0, noise_repeats=4, confidence=0.8)
    bare = stage(max_regression=0, confidence=0.8)
    alarms = without = 0
    chance = rng.uniform(0.2, 0.8, (n, 1))

    def asked():
        return (rng.random((n, samples)) < chance).astype(float)

    for _ in range(SIMULATIONS // 4):
        rounds = [{"old": asked(), "new": asked()} for _ in range(5)]
        scores = Scores(rounds[0], ["f"] * n, rounds[1:])
        (verdict,), (plain,) = judge_gates(made, scores, 0), judge_gates(bare, scores, 0)
        alarms, without = alarms + (not verdict["passed"]), without + (not plain["passed"])
        assert verdict["tests"][0]["floor"] > 0
    assert alarms <= binom.ppf(0.999, SIMULATIONS // 4, 0.1)
    assert alarms < without
    differences = [0.1, -0.1, 0.0]
    assert estimate_noise_floor(differences, TAIL) == pytest.approx(t.ppf(0.975, 2) * 0.1)


def test_a_budget_allows_what_it_says_and_no_more():
    old = np.array([[1.0]] * 300 + [[0.0]] * 100)
    new = np.array([[1.0]] * 260 + [[0.0]] * 140)  # 0.1 worse, on 40 problems
    for allowed, passed in ((0.0, False), (0.05, False), (0.09, True), (0.2, True)):
        verdict = judged(stage(max_regression=allowed), old, new)
        assert verdict["passed"] is passed
    verdict = judged(stage(max_regression={"accuracy": 0.2, "accuracy.f": 0.01}), old, new)
    assert [test["passed"] for test in verdict["tests"]] == [True, False]
    assert "accuracy.f of new − old: -0.1000 [" in verdict["text"]
    assert "wanted the upper bound >= -0.01, detectable 0." in verdict["text"]


def test_mcnemar_says_what_it_counted_and_wants_right_or_wrong():
    old, new = np.array([[0.0]] * 9 + [[1.0]] * 11), np.array([[1.0]] * 18 + [[0.0]] * 2)
    verdict = judged(stage(min_delta=0, test="mcnemar"), old, new)
    assert verdict["text"].startswith(
        "accuracy of new − old: +0.3500 (9 won, 2 lost), p of an improvement 0.0327, wanted <="
    )
    assert not verdict["passed"]
    assert judged(stage(min_delta=0, test="mcnemar", confidence=0.9), old, new)["passed"]
    assert judged(stage(max_regression=0, test="mcnemar"), old, new)["passed"]
    with pytest.raises(StepError, match="0 or 1 for each problem"):
        judged(stage(min_delta=0, test="mcnemar"), np.hstack([old, 1 - old]), np.hstack([new, new]))


def test_without_a_champion_there_is_nothing_to_compare_with():
    made = stage(against="champion", min_delta=0.5, min=0.9)
    check_gates(made, ["old", "new"], ["f"])
    verdict = judged(made, np.zeros((4, 1)), np.ones((4, 1)))
    assert (verdict["passed"], verdict["tests"]) == (True, [])
    assert "no champion yet" in verdict["text"]
    assert not judged(made, np.zeros((4, 1)), np.zeros((4, 1)))["passed"]  # its other bounds still hold
