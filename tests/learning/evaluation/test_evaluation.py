import json

import numpy as np
import pytest

from learning.evaluation.evaluation import Scores, make_comparisons, make_metric_name, make_table
from learning.evaluation.evaluation_report import format_markdown, write_report
from learning.evaluation.gate_statistics import check_gates, judge_gates
from schemas.errors import StepError
from schemas.evaluation_slots import MetricUse
from schemas.stages.evaluate import Evaluate

OLD = np.array([[0.0]] * 30 + [[1.0]] * 10)
NEW = np.array([[0.0]] * 10 + [[1.0]] * 30)
FAMILIES = ["sums"] * 20 + ["words"] * 20


def stage(**more):
    return Evaluate(kind="evaluate", prompts="p", **{"models": {"old": "a", "new": "b"}, **more})


def line(lines, model, family, metric="accuracy"):
    return next(x for x in lines if (x["model"], x["family"], x["metric"]) == (model, family, metric))


def test_table_has_each_model_family_and_all():
    lines = make_table(stage(), Scores({"old": OLD, "new": NEW}, FAMILIES), 0)
    assert line(lines, "old", "all")["value"] == 0.25
    assert line(lines, "old", "sums")["value"] == 0.0
    assert line(lines, "new", "sums")["value"] == 0.5
    assert line(lines, "new", "words")["value"] == 1.0
    assert line(lines, "new", "words")["n"] == 20
    # Wilson's interval for 20 of 20: lower end n / (n + z²).
    assert line(lines, "new", "words")["low"] == pytest.approx(20 / (20 + 1.959964**2), abs=1e-6)
    assert line(lines, "new", "words")["high"] == pytest.approx(1.0)


def test_threshold_forgives_rounding_and_unscorable_is_left_out():
    scores = np.array([[0.1 + 0.2], [0.29], [np.nan]])
    lines = make_table(stage(threshold=0.3), Scores({"old": scores, "new": scores}, ["f"] * 3), 0)
    assert (line(lines, "new", "f")["value"], line(lines, "new", "f")["n"]) == (0.5, 2)


def test_comparison_is_paired():
    (comparison, *_) = make_comparisons(stage(), Scores({"old": OLD, "new": NEW}, FAMILIES), 0)
    assert (comparison["model"], comparison["against"], comparison["value"], comparison["n"]) == ("new", "old", 0.5, 40)
    assert comparison["p_value"] == pytest.approx(2 / 2**20)
    assert 0.3 < comparison["low"] < 0.5 < comparison["high"] < 0.7


def test_every_model_is_compared_with_all_earlier_ones():
    models = {"base": OLD, "tuned": NEW, "better": OLD}
    made = stage(models=dict.fromkeys(models, "m"))
    lines = [line for line in make_comparisons(made, Scores(models, FAMILIES), 0) if line["family"] == "all"]
    pairs = {(line["model"], line["against"]): line["value"] for line in lines}
    assert pairs == {("tuned", "base"): 0.5, ("better", "tuned"): -0.5, ("better", "base"): 0.0}


@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        ({"min": 0.75}, True),
        ({"min": 0.76}, False),
        ({"max": 0.75, "min": 0.5}, True),
        ({"max": 0.7}, False),
        ({"model": "old", "min": 0.3}, False),
        ({"against": "old", "min_delta": 0.3}, True),
        # The mean gain of 0.5 exceeds 0.4, but the lower end of its interval does not.
        ({"against": "old", "min_delta": 0.4}, False),
        ({"against": "new", "model": "old", "min_delta": 0.0}, False),
        ({"metric": "pass_at_1", "min": 0.75}, True),
    ],
)
def test_gates(gate, passed):
    made = stage(gate=[gate], metrics=["accuracy", {"use": "pass_at", "k": 1}])
    scores = Scores({"old": OLD, "new": NEW}, FAMILIES)
    (verdict,) = judge_gates(made, scores, 0)
    assert verdict["passed"] is passed


def test_gates_over_what_is_not_there_are_refused_first():
    for gate, message in [
        ({"metric": "acuracy", "min": 0.1}, "did you mean 'accuracy'"),
        ({"model": "nwe", "min": 0.1}, "did you mean 'new'"),
        ({"against": "odl", "min_delta": 0.1}, "did you mean 'old'"),
        ({"metric": "accuracy.sum", "min": 0.1}, "did you mean 'sums'"),
    ]:
        with pytest.raises(StepError, match=message):
            check_gates(stage(gate=[gate]), ["old", "new"], FAMILIES)
    with pytest.raises(StepError, match="two of the same name"):
        check_gates(stage(metrics=["accuracy", "accuracy"]), ["old", "new"], FAMILIES)


def test_a_metric_that_says_nothing_is_an_error():
    made = stage(metrics=[{"use": "pass_at", "k": 2}])
    with pytest.raises(StepError, match="raise num_generations"):
        make_table(made, Scores({"old": OLD, "new": NEW}, FAMILIES), 0)


def test_names_of_metrics():
    assert make_metric_name(MetricUse(use="pass_at", k=4)) == "pass_at_4"
    assert make_metric_name(MetricUse(use="my.lab:share")) == "share"


def test_report_is_deterministic_and_readable(tmp_path):
    scores = Scores({"old": OLD, "new": NEW}, FAMILIES)
    for name in "ab":
        made = stage(gate=[{"min": 0.9, "on_fail": "warn"}])
        results = {
            "confidence": 0.95,
            "table": make_table(made, scores, 3),
            "comparisons": make_comparisons(made, scores, 3),
        }
        results["gates"] = judge_gates(made, scores, 3)
        (tmp_path / name).mkdir()
        write_report(tmp_path / name, results, [{"model": "old", "id": "1", "sample": 0, "score": None}])
    for file in ("results.json", "samples.parquet", "table.md"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    text = format_markdown(json.loads((tmp_path / "a/results.json").read_text()))
    assert "| new | 0.750 [" in text
    assert "gate FAILED: accuracy of new 0.7500, wanted >= 0.9" in text


def test_problems_without_a_family_count_among_all_alone():
    scores = Scores({"m": np.zeros((3, 1))}, ["sums", None, None])
    assert {name: chosen.tolist() for name, chosen in scores.subsets().items()} == {
        "all": [True, True, True],
        "sums": [True, False, False],
    }
