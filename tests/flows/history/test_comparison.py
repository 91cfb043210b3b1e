"""The page that compares runs: settings that differ, numbers with intervals, nothing that a name could inject."""

import pytest

from flows.history import comparison
from flows.history.comparison import compare_scores, compare_settings, write_comparison
from flows.history.diff import Side, compute_difference_interval
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.manifest import Manifest
from schemas.plan import Plan


def row(value, low, high):
    return {"model": "tuned", "metric": "accuracy", "family": "all", "value": value, "low": low, "high": high, "n": 100}


def side(name, rate, score, seconds=2.0, state="done"):
    stages = {"tuned": {"learning_rate": rate, "tools": ["<b>"]}}
    plan = Plan(recipe="small", file="small.yaml", steps=(), resolved={"name": "small", "stages": stages})
    exam = Manifest.model_construct(
        kind="evaluate",
        key=name,
        details={"table": [score]},
        started="2026-01-01T00:00:00Z",
        seconds=seconds,
        cpu_seconds=2 * seconds,
        gpu_seconds=0.0,
        tokens=7,
    )
    return Side(name, plan, {"exam": {"state": state}}, {"exam": exam})


def test_settings_scores_and_costs_of_three_runs(tmp_path, monkeypatch):
    base, better, same = row(0.2, 0.1, 0.3), row(0.8, 0.7, 0.9), row(0.25, 0.15, 0.35)
    sides = {
        "one": side("one", 0.1, base),
        "two": side("two", 0.2, better, 5.0),
        "three": side("three", 0.1, same, state="cached"),
    }
    assert compare_settings(list(sides.values())) == {"stages.tuned.learning_rate": ["0.1", "0.2", "0.1"]}
    (scores,) = compare_scores(list(sides.values()))
    first, second, third = scores["cells"]
    assert (first["gain"], second["gain"]) == (None, compute_difference_interval(base, better))
    assert (second["tone"], third["tone"]) == ("good", "soft")

    monkeypatch.setattr(comparison, "read_side", lambda run, layout: sides[run])
    write_comparison(Layout(tmp_path), list(sides), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "stages.tuned.learning_rate" in page
    assert '<tr><td>core-seconds<td class="n">4<td class="n">10<td class="n">0</tr>' in page
    assert "<b>" not in page


@pytest.mark.parametrize("runs", [["one"], ["one", "one"]])
def test_fewer_than_two_runs_are_refused(tmp_path, runs):
    with pytest.raises(PlanError, match="two or more different runs"):
        write_comparison(Layout(tmp_path), runs, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
