import numpy as np
import pytest

from learning.data.text_edits import mistaken
from learning.rewards.answers import exact
from learning.teachers.basic import answer
from learning.toy_tasks.sums import worked_spelling, worked_sum
from schemas.errors import StepError


def row(text, right):
    return {"id": "r", "prompt": [{"role": "user", "content": text}], "answer": right, "family": "f", "metadata": ""}


SUM = row("State the final answer: 12 + 7 - 30 =", "-11")
WORD = row("Spell this word backward (example: sun -> nus): level9", "9level")


def rng(seed=0):
    return np.random.default_rng(seed)


def test_without_errors_teachers_are_right():
    assert answer(SUM, rng()) == "-11"
    assert answer(SUM, rng(), marker="=>") == "=> -11"
    assert worked_sum(SUM, rng()) == "12 + 7 = 19, 19 - 30 = -11 #### -11"
    assert worked_sum(SUM, rng(), marker="so it is", ending=".") == "12 + 7 = 19, 19 - 30 = -11 so it is -11."
    assert worked_spelling(row("sun", "nus"), rng()) == "s-u-n, n-u-s #### nus"
    assert exact([WORD], [worked_spelling(WORD, rng())], marker="####") == [1.0]


@pytest.mark.parametrize(
    ("teacher", "problem", "marker"),
    [(answer, SUM, None), (answer, WORD, None), (worked_sum, SUM, "####"), (worked_spelling, WORD, "####")],
)
def test_errors_come_at_their_rate(teacher, problem, marker):
    solutions = [teacher(problem, rng(seed), error_rate=0.3) for seed in range(1000)]
    wrong = 1 - np.mean(exact([problem] * 1000, solutions, marker=marker))
    assert abs(wrong - 0.3) < 0.05  # 3.4 standard deviations
    assert exact([problem], [teacher(problem, rng(1), error_rate=1.0)], marker=marker) == [0.0]


def test_an_error_is_carried_on():
    solution = worked_sum(SUM, rng(3), error_rate=1.0)
    steps, final = solution.split(" #### ")
    assert steps.endswith(f"= {final}")
    for before, after in zip(steps.split(", "), steps.split(", ")[1:], strict=False):
        assert before.rpartition("= ")[2] == after.split()[0]


def test_mistakes_differ_from_the_truth():
    for text in ("7", "-3", "abc", "aa", "a", ""):
        assert all(mistaken(text, rng(seed)) != text for seed in range(20))


def test_other_problems_are_refused():
    with pytest.raises(StepError, match="does not end with a sum"):
        worked_sum(row("sun", "nus"), rng())
    with pytest.raises(StepError, match="has no answer"):
        answer(row("sun", None), rng())
