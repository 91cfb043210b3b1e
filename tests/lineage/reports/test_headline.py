"""The verdict of a comparison follows from its interval; a rejection names who and why; cached runs cost nothing."""

import pytest

from lineage.reports.headline import make_headlines
from lineage.reports.spending import Cost


def evaluated(low, high, family="all"):
    line = {"model": "new", "against": "old", "metric": "accuracy", "family": family, "n": 40}
    comparison = line | {"value": (low + high) / 2, "low": low, "high": high}
    return {"exam": [comparison | {"relation": "parent"}]}


@pytest.mark.parametrize(
    ("low", "high", "verdict", "tone"),
    [
        (0.01, 0.2, "higher", "good"),
        (0.0, 0.2, "no difference shown", "soft"),
        (-0.2, 0.1, "no difference shown", "soft"),
        (-0.3, -0.1, "lower", "bad"),
    ],
)
def test_the_interval_decides(low, high, verdict, tone):
    first, _ = make_headlines(evaluated(low, high), [], Cost(seconds=3.0, core_seconds=6.0))
    assert first.text.endswith(f", 40 problems): {verdict}")
    assert first.tone == tone


def test_families_alone_are_no_headline():
    first, last = make_headlines(evaluated(0.1, 0.2, family="sums"), [], None)
    assert first.text == "No evaluation of this run compares two models."
    assert last.text == "Nothing was spent in this run: every step was cached."


def test_a_rejected_gate_says_by_whom_and_why():
    rejected = "rejected by ada at 2026-11-22T10:00:00+00:00: answers got longer"
    gates = [
        {"step": "exam", "good": False, "outcome": "failed, rejected", "texts": ["accuracy 0.1, wanted 0.9", rejected]},
        {"step": "other", "good": True, "outcome": "passed", "texts": ["fine"]},
    ]
    _, gate, cost = make_headlines(evaluated(0.1, 0.2), gates, Cost(seconds=60.0, core_seconds=120.0, tokens=5000))
    assert gate.text == f"Gate of exam: failed, rejected. accuracy 0.1, wanted 0.9 {rejected}"
    assert cost.text == "Spent in this run: 60.0 s of steps, 120 core-seconds, 5,000 tokens."
