"""The page that compares runs: settings that differ, numbers with intervals, nothing that a name could inject."""

import json
from types import SimpleNamespace

import pytest

from flows.history import comparison
from flows.history.comparison import compare_scores, compare_settings, write_comparison
from flows.history.diff import Side, compute_difference_interval
from lineage.layout import Layout
from schemas.errors import PlanError
from schemas.manifest import InputRecord, Manifest
from schemas.plan import Plan


def row(value, low, high):
    return {"model": "tuned", "metric": "accuracy", "family": "all", "value": value, "low": low, "high": high, "n": 100}


def side(name, rate, score, seconds=2.0, state="done"):
    stages = {"tuned": {"learning_rate": rate, "tools": ["<b>"]}}
    step = SimpleNamespace(name="exam", key=name, settings={})
    resolved = {"name": "small", "stages": stages}
    plan = Plan.model_construct(recipe="small", file="small.yaml", steps=(step,), resolved=resolved)
    exam = Manifest.model_construct(
        kind="evaluate",
        key=name,
        details={"table": [score]},
        inputs=(),
        started="2026-01-01T00:00:00Z",
        seconds=seconds,
        cpu_seconds=2 * seconds,
        gpu_seconds=0.0,
        tokens=7,
    )
    return Side(name, plan, {"exam": {"state": state}}, {"exam": exam})


def test_gates_and_promotions_stand_beside_each_other(tmp_path, monkeypatch):
    layout, sides = Layout(tmp_path), {}
    for name, passed in (("one", True), ("two", False)):
        made = side(name, 0.1, row(0.5, 0.4, 0.6))
        gate = {"passed": passed, "text": f"accuracy of tuned 0.5, <wanted> {0.4 if passed else 0.6}"}
        exam = made.manifests["exam"].model_copy(update={"inputs": (), "details": {"table": [], "gates": [gate]}})
        step = SimpleNamespace(name="exam", key=name, settings={"gate": [{"on_fail": "stop"}]})
        plan = SimpleNamespace(recipe="small", profile=None, resolved={}, steps=(step,), step=lambda _, step=step: step)
        sides[name] = Side(name, plan, made.states, {"exam": exam})
        layout.run(name).mkdir(parents=True)
    event = {"type": "promotion", "name": "chat", "moved": True, "text": "champion of chat: none → version 1"}
    (layout.run("one") / "events.jsonl").write_text(json.dumps(event) + "\n")
    monkeypatch.setattr(comparison, "read_side", lambda run, layout: sides[run])
    content = comparison.compare_runs(layout, ["one", "two"])
    ((first, second),) = [gate["cells"] for gate in content["gates"]]
    assert (first["outcome"], first["tone"], second["outcome"], second["tone"]) == ("passed", "good", "failed", "bad")
    assert content["promotions"] == ["champion of chat: none → version 1", None]
    write_comparison(content, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "champion of chat: none → version 1" in page
    assert "&lt;wanted&gt;" in page


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
    write_comparison(comparison.compare_runs(Layout(tmp_path), list(sides)), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "stages.tuned.learning_rate" in page
    assert '<tr><td>core-seconds<td class="n">4<td class="n">10<td class="n">0</tr>' in page
    assert "<b>" not in page


@pytest.mark.parametrize("runs", [["one"], ["one", "one"]])
def test_fewer_than_two_runs_are_refused(tmp_path, runs):
    with pytest.raises(PlanError, match="two or more different runs"):
        comparison.compare_runs(Layout(tmp_path), runs)


def test_gains_are_over_the_model_that_each_was_trained_from(tmp_path, monkeypatch):
    def with_gain(name, value):
        made = side(name, 0.1, row(0.5, 0.4, 0.6))
        received = {"output": "model", "digest": "d" * 64, "type": "policy"}
        inputs = [
            InputRecord(port=f"models.{key}", step=key, key=key, **received) for key in ("base", "tuned", "other")
        ]
        table = made.manifests["exam"].details["table"]
        gain = {"model": "tuned", "against": "base", "metric": "accuracy", "family": "all", "n": 100, "p_value": 0.01}
        neighbour = gain | {"model": "other", "against": "tuned", "value": 9.0, "low": 9.0, "high": 9.0}
        lines = [gain | {"value": value, "low": value - 0.1, "high": value + 0.1}, neighbour]
        exam = made.manifests["exam"].model_copy(
            update={"inputs": tuple(inputs), "details": {"table": table, "comparisons": lines}}
        )
        start = InputRecord(port="model", step="base", key="base", **received)
        tuned = exam.model_copy(update={"key": "tuned", "kind": "sft", "inputs": (start,), "details": {}})
        steps = (*made.plan.steps, SimpleNamespace(name="tuned", key="tuned", settings={}))
        plan, states = (
            made.plan.model_copy(update={"steps": steps}),
            {"exam": {"state": "done"}, "tuned": {"state": "done"}},
        )
        return Side(name, plan, states, {"exam": exam, "tuned": tuned})

    sides = {"one": with_gain("one", 0.3), "two": with_gain("two", -0.05)}
    (gains,) = comparison.compare_gains(list(sides.values()), Layout(tmp_path))
    assert (gains["model"], gains["metric"]) == ("tuned", "accuracy")
    assert [[(line["against"], line["value"], line["tone"]) for line in cell] for cell in gains["cells"]] == [
        [("base", 0.3, "good")],
        [("base", -0.05, "soft")],
    ]
    monkeypatch.setattr(comparison, "read_side", lambda run, layout: sides[run])
    write_comparison(comparison.compare_runs(Layout(tmp_path), list(sides)), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "+0.300 over base" in page
    assert "+9.000" not in page
