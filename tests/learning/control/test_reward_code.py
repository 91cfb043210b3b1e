"""Reward functions of a model are parsed and computed, and never executed."""

import sys
import time

import numpy as np
import pytest

from learning.control.rewards.reward_code import parse_reward
from tests.security.hostile import enormous, hostile

X = {"x": np.array([1.0, -2.0, 0.0]), "y": np.array([2.0, 2.0, 4.0])}


def compute(body, names=("x", "y")):
    """The rewards of three steps by a function with this body."""
    return parse_reward(f"def reward({', '.join(names)}):\n    {body}", ["x", "y"]).compute(X).tolist()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x + 2 * y", [5, 2, 8]),
        ("return -abs(x) ** 2 / y", [-0.5, -2, 0]),
        ("return 1", [1, 1, 1]),
        ("z = min(x, 0)\n    w = z - 1\n    return max(w, -2) * y", [-2, -4, -4]),
        ("return 1 if x > 0 else -1", [1, -1, -1]),
        ("return (x >= 0) + (y < 3)", [2, 1, 1]),
        ('"""A reward."""\n    return sqrt(y - 2) + exp(0) + log(1) + sin(0) + cos(0) + tanh(0)', [2, 2, 2 + 2**0.5]),
    ],
)
def test_it_computes_what_python_would(body, expected):
    assert compute(body) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def reward(x):\n    return x.real", "Attribute is not allowed"),
        ("def reward(x):\n    return x[0]", "Subscript is not allowed"),
        ("def reward(x):\n    return __import__('os')", "Call is not allowed"),
        ("def reward(x):\n    return open(x)", "Call is not allowed"),
        ("def reward(x):\n    return abs(x, key=x)", "Call is not allowed"),
        ("def reward(x):\n    return min(x)", "`min` takes 2"),
        ("def reward(x):\n    return 'a' + x", "Constant is not allowed"),
        ("def reward(x):\n    return True", "Constant is not allowed"),
        ("def reward(x):\n    return 1e9 * x", "larger than 1e"),
        ("def reward(x):\n    return y", "there is no `y`"),
        ("def reward(x):\n    return (lambda: x)()", "Call is not allowed"),
        ("def reward(x):\n    import os\n    return x", "line 2: write"),
        ("def reward(x):\n    x = 1\n", "it returns nothing"),
        ("def reward(x):\n    return x\n    y = 2", "nothing may follow"),
        ("def reward(z):\n    return z", "its arguments may be x, y"),
        ("def reward(x=1):\n    return x", "its arguments may be"),
        ("@abs\ndef reward(x):\n    return x", "its arguments may be"),
        ("import os\ndef reward(x):\n    return x", "one function `reward`"),
        ("def other(x):\n    return x", "one function `reward`"),
        ("def reward(x)", "no Python: SyntaxError"),
        ("def reward(x):\n    return x" + " + x" * 500, "too long"),
        ("x" * 5000, "longer than 4000"),
    ],
)
def test_anything_else_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_reward(text, ["x", "y"])


@pytest.mark.parametrize(
    "body", ["return x / 0.0", "return log(x)", "return exp(exp(y) * 9)", "return (y ** y) ** y ** y"]
)
def test_a_reward_that_is_no_number_raises(body):
    with pytest.raises(ValueError, match="is not a number from"):
        compute(body)


def test_hostile_texts_are_refused_at_once(tmp_path):
    started, before = time.process_time(), sys.getrecursionlimit()
    for text in [*hostile(str(tmp_path / "canary")), *enormous()]:
        for shown in (text, f"def reward(x):\n    return {text}"):
            with pytest.raises(ValueError, match=r"."):
                parse_reward(shown, ["y"])
    assert time.process_time() - started < 20
    assert sys.getrecursionlimit() == before
    assert not (tmp_path / "canary").exists()
