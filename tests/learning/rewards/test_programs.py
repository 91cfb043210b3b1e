"""Programs run in the sandbox: tests that pass, values of variables, and what a program cannot do to its score."""

import json

import pytest

from learning.rewards.programs import parse_assertion, passed, states
from learning.sandbox.programs import extract_program, trace_variables
from schemas.errors import StepError

LOOP = """Here it is:
```python
def add(values):
    total = 0
    for value in values:
        total += value
    return total
```
It adds."""


def row(*tests, **metadata):
    return {"id": "r", "metadata": json.dumps({"tests": list(tests), **metadata})}


ADD = row("assert add([1, 2, 3]) == 6", "assert add([]) == 0")


def test_a_program_with_a_loop_passes_and_a_wrong_one_passes_its_share():
    constant = "def add(values): return 6"
    assert passed([ADD] * 2, [LOOP, constant]) == [1.0, 0.0]
    assert passed([ADD], [constant], partial=True) == [0.5]


@pytest.mark.parametrize(
    "text",
    [
        "def add(values) return 6",
        "while True: pass",
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "def add(values): return type('E', (), {'__eq__': lambda *_: True, '__repr__': lambda _: '6'})()\n1/0",
        "import os, json\nos.write(3, json.dumps(['6', '1']).encode())\nos._exit(0)",
        "import os\nos.write(3, b'[')\nos._exit(0)",
        "def add(values): return open('../asked.json').read()",
        "",
    ],
)
def test_what_is_no_right_program_scores_0(text):
    assert passed([ADD], [text], seconds=0.5) == [0.0]


def test_a_value_that_claims_to_be_equal_to_everything_is_compared_by_its_text():
    liar = "class E:\n  def __eq__(s, o): return True\n  def __repr__(s): return '7'\ndef add(values): return E()"
    assert passed([ADD], [liar]) == [0.0]


def test_output_is_compared_with_what_a_test_expects():
    doubled = row({"input": "3\n", "output": "6\n"}, {"input": "4\n", "output": "8"})
    assert passed([doubled] * 2, ["print(2 * int(input()), '')", "print(6)"], partial=True) == [1.0, 0.5]


def test_a_test_of_another_form_is_refused_and_a_row_without_tests_is_not_scored():
    for test in ("assert add([1]) == add([1])", "add(1)", 3, {"input": "1"}, "assert f(1) < 3"):
        with pytest.raises(StepError, match="a test of another form"):
            passed([row(test)], ["x"])
    assert passed([{"id": "r", "metadata": None}], ["x"]) == [None]


@pytest.mark.parametrize(
    ("test", "parts"),
    [
        ("assert f('a', [1]) == {'b': 2}", ("f('a', [1])", "{'b': 2}")),
        ("assert not f(2)", ("bool(f(2))", "False")),
        ("assert f(2)", ("bool(f(2))", "True")),
        ("assert f(1) == 2 and f(2) == 3", None),
    ],
)
def test_an_assertion_is_a_call_and_a_literal(test, parts):
    assert parse_assertion(test) == parts


def test_the_last_values_of_the_called_functions_variables():
    assert trace_variables(extract_program(LOOP), "add([1, 2])") == {"values": "[1, 2]", "total": "3", "value": "2"}
    outer = "def g(n):\n    m = n\n    return m\ndef f(n):\n    a = g(n + 1)\n    return a"
    assert trace_variables(outer, "f(1)") == {"n": "1", "a": "2"}
    assert trace_variables("def f(n):\n    a = 1 / n", "f(0)") is None
    assert trace_variables("x = a + 1\na = 9\nlater = print", variables={"a": 1, "b": 2}) == {"x": "2", "a": "9"}


def test_predicted_values_are_compared_as_literals():
    asked = {"id": "r", "metadata": json.dumps({"states": {"total": "3", "values": "[1, 2]"}})}
    texts = ["values = [1,2]\ntotal = 3", "total = 3", "total = 3\nvalues = [1, 2]\nother = 1", "nothing"]
    assert states([asked] * 4, texts) == [1.0, 0.0, 0.0, 0.0]
    assert states([asked] * 4, texts, partial=True) == [1.0, 0.5, 0.0, 0.0]
    assert states([ADD], texts[:1]) == [None]
