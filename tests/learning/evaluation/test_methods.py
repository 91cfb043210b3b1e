"""Methods over worlds and seeds: names, gaps, normalised scores, and numbers against other formulas."""

import json
from itertools import product

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, trim_mean

from learning.evaluation.methods import (
    compute_iqms,
    estimate,
    estimate_improvement,
    make_method_lines,
    name_method,
    normalise,
    read_runs,
)
from schemas.errors import StepError
from schemas.stages.benchmark import Benchmark
from tasks import benchmark
from tasks.context import Context

HOW = {"confidence": 0.95, "num_bootstrap": 500, "seed": 0}


def write_report(folder, values, metric="mean_return"):
    """A report with one value per model, and a line of a family that does not count."""
    folder.mkdir(exist_ok=True)
    lines = [{"model": model, "family": "all", "metric": metric, "value": value} for model, value in values.items()]
    lines += [{**lines[0], "family": "hard", "value": 1e9}]
    (folder / "results.json").write_text(json.dumps({"table": lines}))
    return folder


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("pole@algorithm=ppo,seed=12", ("algorithm=ppo", "12")),
        ("pole@seed=3,lr=0.1,algorithm=ppo", ("lr=0.1,algorithm=ppo", "3")),
        ("pole@lr=1,seed=3,x=2", ("lr=1,x=2", "3")),
        ("ppo@seed=3", ("ppo", "3")),
        ("ppo", ("ppo", "")),
        ("p@reseed=3", ("reseed=3", "")),
    ],
)
def test_a_method_is_a_name_without_stage_and_seed(model, expected):
    assert name_method(model) == expected


def test_runs_of_all_worlds_are_matched_by_seed(tmp_path):
    first = {"a@m=x,seed=1": 1.0, "a@m=x,seed=2": 2.0, "a@m=y,seed=1": 5.0, "a@m=y,seed=2": 6.0}
    second = {"b@m=x,seed=2": 20.0, "b@m=x,seed=1": 10.0, "b@m=y,seed=2": 60.0, "b@m=y,seed=1": 50.0}
    reports = {name: write_report(tmp_path / name, of) for name, of in (("A", first), ("B", second))}
    runs = read_runs(reports, "mean_return")
    assert {method: score.tolist() for method, score in runs.items()} == {
        "m=x": [[1, 10], [2, 20]],
        "m=y": [[5, 50], [6, 60]],
    }


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"b@m=x,seed=1": 1.0}, "m=x has not the same seeds in all worlds .A: 1, 2; B: 1."),
        ({"b@m=y,seed=1": 1.0, "b@m=y,seed=2": 2.0}, "m=x has not the same seeds in all worlds .A: 1, 2; B: none."),
        ({"b@m=x,seed=1": 1.0, "c@m=x,seed=1": 1.0}, "B has two runs of m=x with the seed 1"),
    ],
)
def test_a_matrix_with_gaps_is_refused(second, message, tmp_path):
    first = write_report(tmp_path / "A", {"a@m=x,seed=1": 1.0, "a@m=x,seed=2": 2.0})
    with pytest.raises(StepError, match=message):
        read_runs({"A": first, "B": write_report(tmp_path / "B", second)}, "mean_return")
    with pytest.raises(StepError, match="the report of A has no metric success; it has mean_return"):
        read_runs({"A": first}, "success")


def test_zero_and_one_are_the_bounds_of_each_world():
    scores = normalise(np.array([[10.0, -200.0], [500.0, -1600.0]]), [(10, 500), (-1600, -200)])
    assert scores.tolist() == [[0, 1], [1, 0]]
    assert normalise(scores, None) is scores


def test_the_iqm_of_each_row_is_scipys_trimmed_mean():
    score_SX = np.random.default_rng(0).normal(size=(6, 15)) ** 3
    assert compute_iqms(score_SX) == pytest.approx(trim_mean(score_SX, 0.25, axis=1), rel=1e-12)


def test_three_seeds_have_their_mean_and_the_interval_of_all_27_resamples():
    every = [np.mean(drawn) for drawn in product((1.0, 2.0, 3.0), repeat=3)]
    found = estimate(
        lambda score_SX: score_SX.mean(1),
        np.array([[1.0], [2.0], [3.0]]),
        confidence=0.9,
        num_bootstrap=100_000,
        seed=1,
    )
    assert (found.value, found.n) == (2.0, 3)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(every * 1000, [0.05, 0.95])), abs=1e-9)


def test_the_probability_of_improvement_is_mann_whitneys_u_averaged_over_worlds():
    rng = np.random.default_rng(2)
    new, old = rng.integers(0, 6, size=(5, 3)).astype(float), rng.integers(0, 6, size=(4, 3)).astype(float)
    expected = np.mean([mannwhitneyu(new[:, w], old[:, w]).statistic / 20 for w in range(3)])
    found = estimate_improvement(new, old, **HOW)
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert found.low <= found.value <= found.high
    assert estimate_improvement(new + 10, old, **HOW).low == 1.0
    assert estimate_improvement(new, new, **HOW).value == 0.5


def test_lines_have_the_iqm_the_mean_each_world_and_the_comparison():
    scores = {"x": np.array([[0.0, 1.0], [0.5, 1.0]]), "y": np.array([[1.0, 2.0], [1.5, 2.0]])}
    lines = make_method_lines(scores, ["A", "B"], "r", **HOW)
    found = {(line["model"], line["metric"], line["family"]): line["value"] for line in lines}
    assert found == {
        ("x", "iqm_r", "all"): 0.75,
        ("y", "iqm_r", "all"): 1.75,
        ("x", "r", "all"): 0.625,
        ("y", "r", "all"): 1.625,
        ("x", "r", "A"): 0.25,
        ("x", "r", "B"): 1.0,
        ("y", "r", "A"): 1.25,
        ("y", "r", "B"): 2.0,
        ("y", "better_than_x", "all"): 1.0,
    }


def test_the_task_reads_reports_alone_and_keeps_every_run(tmp_path):
    values = {f"pole@m={m},seed={s}": 10.0 * s + shift for m, shift in (("x", 0), ("y", 5)) for s in (1, 2, 3)}
    inputs = {f"reports.{world}": write_report(tmp_path / world, values) for world in ("A", "B")}
    stage = Benchmark(kind="benchmark", reports={"A": "a", "B": "b"}, bounds={"A": (0, 100), "B": (0, 10)})
    (tmp_path / "out").mkdir()
    result = benchmark.run(stage, Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=1))
    assert result.metrics["iqm_mean_return.m=x"] == pytest.approx(np.mean(sorted([0.1, 0.2, 0.3, 1, 2, 3])[1:5]))
    assert result.metrics["better_than_m=x.m=y"] == pytest.approx(np.mean([1, 1, 1, 0, 1, 1, 0, 0, 1]))
    assert result.details["runs"]["m=y"] == {"A": [15, 25, 35], "B": [15, 25, 35]}
    assert "| m=y |" in (tmp_path / "out/outputs/report/table.md").read_text()
    assert result.metrics["runs"] == 12


def test_bounds_are_of_all_worlds_and_differ():
    with pytest.raises(ValueError, match="`bounds` must name the worlds of `reports`: A, B"):
        Benchmark(kind="benchmark", reports={"A": "a", "B": "b"}, bounds={"A": (0, 1)})
    with pytest.raises(ValueError, match="the two values are equal"):
        Benchmark(kind="benchmark", reports={"A": "a"}, bounds={"A": (1, 1)})
