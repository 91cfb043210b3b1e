"""Returns on the scale of the data: numbers by hand, and what is refused."""

import json

import pytest

from learning.data.rows import write_rows
from learning.evaluation.normalised_returns import normalised_returns
from schemas.errors import StepError
from tasks.context import Context


@pytest.fixture
def normalise(tmp_path):
    def run(returns, table, low=-1.0, high=1.0):
        for name in ("data", "report", "out"):
            (tmp_path / name).mkdir(exist_ok=True)
        said = [{"role": "assistant", "content": "c"}]
        rows = [
            {
                "id": str(i),
                "prompt": said,
                "completion": said,
                "answer": "",
                "family": family,
                "metadata": json.dumps(told),
            }
            for i, (family, told) in enumerate(returns)
        ]
        write_rows(tmp_path / "data", "chat", rows)
        (tmp_path / "report/results.json").write_text(json.dumps({"table": table}))
        inputs = {"inputs.data": tmp_path / "data", "inputs.report": tmp_path / "report"}
        metrics = normalised_returns(Context(inputs, tmp_path / "out", tmp_path / "c", seed=0), low=low, high=high)
        return metrics, json.loads((tmp_path / "out/outputs/report/normalised.json").read_text())

    return run


def line(model, family, value, metric="mean_score"):
    return {"model": model, "family": family, "value": value, "metric": metric}


def test_the_mean_of_the_data_is_fifty(normalise):
    data = [("a", {"rewards": [-0.5, 0.5]}), ("a", {"rewards": 0.5}), ("b", {"rewards": [-0.25]})]
    table = [line("m", "all", 0.25 / 3), line("m", "a", 0.25), line("m", "b", -0.625), line("n", "all", 1.0)]
    metrics, made = normalise(data, [*table, line("n", "all", 0.1, "accuracy")])
    assert metrics == pytest.approx({"normalised.m": 50, "normalised.n": 100})
    assert [one["value"] for one in made["table"]] == pytest.approx([50, 50, 25, 100])
    assert made["data"] == pytest.approx({"all": 0.25 / 3, "a": 0.25, "b": -0.25})


def test_what_has_no_scale_is_refused(normalise):
    table = [line("m", "all", 0.0)]
    with pytest.raises(StepError, match="mean return of 2, not between -1 and 1"):
        normalise([("a", {"rewards": [2.0]})], table)
    with pytest.raises(StepError, match="no row of the data has `rewards`"):
        normalise([("a", {})], table)
    with pytest.raises(StepError, match="no metric mean_score"):
        normalise([("a", {"rewards": [0.0]})], [line("m", "all", 0.0, "accuracy")])


def test_rows_of_a_user_need_no_family(normalise):
    metrics, made = normalise([(None, {"rewards": [0.5]}), ("a", {"rewards": [-0.5]})], [line("m", "all", 0.0)])
    assert metrics == {"normalised.m": 50}
    assert made["data"] == {"all": 0.0, "a": -0.5}
