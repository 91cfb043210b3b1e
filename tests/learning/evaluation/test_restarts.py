"""A round begins from its base after a plateau, else from the model of the round before."""

import json

import pytest

from learning.evaluation.restarts import restart_on_plateau
from schemas.errors import StepError
from tasks.context import Context


@pytest.fixture
def context(tmp_path):
    """A step with two models, and an exam in which the first had 0.5."""

    def make(after, family="all", metric="accuracy"):
        for name in ("base", "previous"):
            (tmp_path / name / "inner").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "config.json").write_text(name)
            (tmp_path / name / "inner" / "weights").write_text(name)
        (tmp_path / "exam").mkdir(exist_ok=True)
        values = {"before": 0.5, "after": after}
        table = [
            {"model": model, "family": of, "metric": metric, "value": value if of == family else 1 - value}
            for model, value in values.items()
            for of in (family, "rewriting2")
        ]
        (tmp_path / "exam" / "results.json").write_text(json.dumps({"table": table}))
        inputs = {name: tmp_path / name for name in ("base", "previous", "exam")}
        return Context(inputs, tmp_path / "out", tmp_path / "checkpoints", seed=0)

    return make


@pytest.mark.parametrize(("after", "source"), [(0.5, "base"), (0.51, "base"), (0.6, "previous"), (0.4, "base")])
def test_the_gain_decides(context, after, source):
    step = context(after)
    assert restart_on_plateau(step, min_gain=0.05) == {"gain": pytest.approx(after - 0.5), "restarts": source == "base"}
    made = step.output("model")
    assert [path.read_text() for path in (made / "config.json", made / "inner" / "weights")] == [source] * 2


def test_a_gain_of_exactly_the_limit_is_no_plateau(context):
    assert restart_on_plateau(context(0.75), min_gain=0.25)["restarts"] is False


@pytest.mark.parametrize("wrong", [{"family": "other"}, {"metric": "mean_score"}])
def test_a_report_without_the_numbers_is_refused(context, wrong):
    with pytest.raises(StepError, match="has no accuracy of `before`"):
        restart_on_plateau(context(0.7, **wrong))
