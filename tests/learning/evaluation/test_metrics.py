"""Metrics of an evaluation that look at what was said, and at another model's scores."""

import numpy as np
import pytest

from learning.evaluation.evaluation import Scores, compute_values, make_table
from learning.evaluation.metrics import cons, distinct, f1, win_rate
from schemas.errors import StepError
from schemas.stages.evaluate import Evaluate

NAN = np.nan
TEXTS = np.array([["7", "8", "7.", "9"], ["a #### 1", "#### 2", "nothing", "#### 2"], ["", " ", "", ""]], dtype=object)
CORRECT = np.array([[1, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, NAN]], dtype=float)


def same(got, want):
    np.testing.assert_array_equal(got, np.array(want, dtype=float))


def test_the_majority_is_right_or_wrong():
    same(cons(CORRECT, TEXTS, k=4), [1, 0, NAN])
    same(cons(CORRECT, TEXTS, k=3), [1, 1, NAN])  # the second: three different answers, the first one counts
    same(cons(CORRECT, TEXTS, k=4, marker="####"), [NAN, 0, NAN])
    same(cons(CORRECT, TEXTS, k=1), [1, 1, NAN])
    same(cons(CORRECT, TEXTS, k=5), [NAN] * 3)
    same(cons(1 - CORRECT[:1], TEXTS[:1], k=3), [0])


def test_different_answers_are_counted():
    same(distinct(CORRECT, TEXTS), [1, 1, 0])
    same(distinct(CORRECT, TEXTS, right=False), [3, 3, 0])
    same(distinct(CORRECT, TEXTS, right=False, marker="####"), [0, 2, 0])


def test_wins_over_the_first_model():
    new, old = np.array([[1.0, 0.0], [0.5, NAN], [NAN, NAN]]), np.array([[0.0, 0.0], [0.5, 1.0], [1.0, 1.0]])
    same(win_rate(new, old), [0.75, 0.25, NAN])
    same(win_rate(old, old), [0.5, 0.5, 0.5])


def test_the_table_gives_metrics_what_they_ask_for():
    made = {"kind": "evaluate", "models": {"old": "a", "new": "b"}, "prompts": "p", "num_generations": 2}
    words = ["win_rate", {"use": "distinct", "right": False}, "accuracy"]
    stage = Evaluate.model_validate({**made, "temperature": 1.0, "metrics": words})
    old, new = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 1.0]])
    completions = {"old": np.array([["a", "a"], ["b", "c"]], object), "new": np.array([["a", "b"], ["b", "c"]], object)}
    scores = Scores(
        {"old": old, "new": new}, ["f", "f"], [{"new": old}], completions, [{"new": completions["old"]}], first="old"
    )
    values = {(line["metric"], line["model"]): line["value"] for line in make_table(stage, scores, 0)}
    assert values["win_rate", "new"] == 0.75
    assert values["win_rate", "old"] == (0.5 + 0.5) / 2
    assert values["distinct_False", "new"] == 2.0
    assert values["distinct_False", "old"] == 1.5
    (again,) = scores.again()
    with pytest.raises(StepError, match="first_PN"):
        compute_values(stage, again)
    others = stage.model_copy(update={"metrics": stage.metrics[1:]})
    assert compute_values(others, again)["distinct_False"]["new"].tolist() == [1.0, 2.0]


def test_f1_of_a_decision_is_a_ratio_whose_parts_add_up():
    text_PN = np.array([["yes", "no"], ["no", "no"], ["yes", "x"], [" yes ", "no"]], dtype=object)
    # Wanted: yes, yes, no, no. TP 1, FP 2, FN 3 (one of the first problem, two of the second).
    correct_PN = np.array([[1.0, 0], [0, 0], [0, 0], [0, 1]])
    value_P = f1(correct_PN, text_PN)
    assert value_P.mean() == pytest.approx(2 / (2 + 2 + 3))
    parts = np.array([3, 2, 1, 1])
    assert value_P == pytest.approx(2 / 7 + (np.array([2, 0, 0, 0]) - 2 / 7 * parts) / parts.mean())
    # Samples without a score count nowhere, and neither problem wants or has the decision: 0.
    assert f1(np.array([[np.nan], [1.0]]), np.array([["yes"], ["no"]], dtype=object)).tolist() == [0, 0]
    assert f1(np.array([[1.0]]), np.array([["oui"]], dtype=object), positive="oui").tolist() == [1]
