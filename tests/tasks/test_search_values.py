"""What a search takes as the worth of a trial."""

import json

import pytest

from schemas.errors import StepError
from tasks.search import read_value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_trial_whose_evaluation_gives_no_finite_number_has_failed(value, tmp_path):
    """Nothing compares with NaN, so that a first trial of this value would stay the best one."""
    table = [{"model": "m", "metric": "mean_return", "family": "all", "value": value}]
    (tmp_path / "results.json").write_text(json.dumps({"table": table}))
    with pytest.raises(StepError, match="mean_return of m"):
        read_value(tmp_path, "m", "mean_return")


def test_the_value_over_all_families_counts(tmp_path):
    rows = [("m", "all", 0.25), ("m", "easy", 0.75), ("other", "all", 0.5)]
    table = [{"model": model, "metric": "accuracy", "family": family, "value": v} for model, family, v in rows]
    (tmp_path / "results.json").write_text(json.dumps({"table": table}))
    assert read_value(tmp_path, "m", "accuracy") == 0.25
