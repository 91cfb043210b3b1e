"""Countdown: solvable, split by problem, scored by what an expression says."""

import numpy as np
import pytest

from learning.toy_tasks.countdown import countdown, iterate_solutions, read_problem, worked_countdown
from learning.toy_tasks.rewards.expressions import reaches
from schemas.errors import StepError


def test_every_problem_is_solvable_and_no_side_holds_the_other():
    train = countdown(size=60, seed=1, split="train")
    test = countdown(size=30, seed=2, split="test")
    kinds = [{(tuple(sorted(n)), t) for n, t in map(read_problem, rows)} for rows in (train, test)]
    assert not kinds[0] & kinds[1]
    assert reaches(train, [row["answer"] for row in train]) == [1.0] * 60
    assert countdown(size=60, seed=1, split="train") == train
    with pytest.raises(StepError, match="raise `largest` or `target`"):
        countdown(size=500, seed=1, split="test", numbers=2, largest=2, target=3)


def test_worked_solutions_are_right_and_differ():
    row = countdown(size=1, seed=5, split="train", target=10)[0]
    texts = {worked_countdown(row, np.random.default_rng(i)) for i in range(20)}
    assert len(texts) > 1
    assert reaches([row] * len(texts), sorted(texts)) == [1.0] * len(texts)
    for text in texts:
        for step in text.partition("#")[0].split(","):
            left, _, right = step.partition("=")
            assert eval(left) == int(right)


def test_solutions_are_exactly_the_left_to_right_ones():
    solutions = {text for _, text in iterate_solutions([2, 7, 4], 1)}
    assert solutions == {"2*4-7", "4*2-7", "7-2-4", "7-4-2"}
    assert all(eval(text) == 1 for text in solutions)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("7-4-2", 1.0),
        ("3-2=1#7-(4+2)", 1.0),
        ("(7-2)//4", 0.0),
        ("7-7+1", 0.0),
        ("7-6", 0.0),
        ("(7-4)/(2-2)", 0.0),
        ("4/2-2+7-6", 0.0),
        ("__import__('os')", 0.0),
        ("7-4-", 0.0),
        ("9**9", 0.0),
        ("7if 4else 2", 0.0),
        ("", 0.0),
        ("(" * 300, 0.0),
    ],
)
def test_scores_of_texts(text, score):
    row = {"id": "x", "metadata": '{"numbers": [7, 4, 2], "target": 1}'}
    assert reaches([row], [text]) == [score]


def test_rows_of_another_kind_are_refused():
    with pytest.raises(StepError, match="use problems of `countdown`"):
        reaches([{"id": "x", "metadata": None}], ["1"])
