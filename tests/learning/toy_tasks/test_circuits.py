"""Circuits: every table has an expression, the simulator is Python's own arithmetic, the sides share no table."""

import itertools
import json

import pytest

from learning.toy_tasks.circuits import circuits, compute_pass_rate, find_expressions, make_problem, simulate
from learning.toy_tasks.rewards.testbench import passed
from schemas.errors import StepError


@pytest.mark.parametrize("inputs", [2, 3])
def test_every_table_has_an_expression(inputs):
    expressions = find_expressions(inputs)
    assert sorted(expressions) == list(range(2 ** (2**inputs)))
    assert all(simulate(text, inputs) == table for table, text in expressions.items())
    assert max(map(len, expressions.values())) <= 13


@pytest.mark.parametrize("text", ["a&b|c", "a^b&c", "~a|~(b^c)", "a|b&~c^a", "~~a"])
def test_the_simulator_agrees_with_python(text):
    vectors = itertools.product((0, 1), repeat=3)
    bits = [eval(text, {}, dict(zip("abc", v, strict=True))) & 1 for v in vectors]
    assert simulate(text, 3) == int("".join(map(str, bits)), 2)


@pytest.mark.parametrize("text", ["", "a&", "d", "a+b", "a b", "a(b)", "(" * 300, "1", "a if b else c"])
def test_other_texts_are_no_circuits(text):
    assert simulate(text, 3) is None
    assert passed([make_problem(5, 3)], [text]) == [0.0]


def test_an_input_that_a_table_has_not_is_none():
    assert simulate("a^c", 2) is None


def test_pass_rate_counts_vectors():
    row = make_problem(0b00010111, 3)
    assert compute_pass_rate(row, "a&b|c&(a|b)") == 1.0
    assert compute_pass_rate(row, "a&b") == 6 / 8
    assert compute_pass_rate(row, "~(a&b|c&(a|b))") == 0.0
    with pytest.raises(StepError, match="use problems of `circuits`"):
        compute_pass_rate({"id": "x", "metadata": None}, "a")


def test_sides_share_no_table_and_attempts_are_wrong():
    train = circuits(size=300, split="train", seed=1, attempts=0.5)
    test = circuits(size=40, split="test", seed=1)
    tables = [{json.loads(row["metadata"])["table"] for row in rows} for rows in (train, test)]
    assert not tables[0] & tables[1]
    assert passed(train, [row["answer"] for row in train]) == [1.0] * 300
    shown = [(row, text.partition(" not ")[2]) for row in train if " not " in (text := row["prompt"][0]["content"])]
    assert len(shown) > 50
    assert all(compute_pass_rate(row, attempt) < 1 for row, attempt in shown)
    with pytest.raises(StepError, match="lower `size`"):
        circuits(size=500, split="test")
