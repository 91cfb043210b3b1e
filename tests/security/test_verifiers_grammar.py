"""What is evaluated of an answer: literals and bounded arithmetic."""

import subprocess
import sys
import time

import pytest

from learning.reasoning_gym import grammar as gym_grammar
from learning.reasoning_gym.families import dataset
from learning.reasoning_gym.grammar import literal, require_arithmetic
from tests.security.hostile_answers import BOMBS, DEEDS, FRAMES, MARK

PROGRAMS = [
    frame.format(deed=deed, deed_in_quotes=deed.replace("'", '"'), mark=MARK)
    for frame in FRAMES
    for deed in (deed.format(path="made", mark=MARK) for deed in DEEDS)
]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("['A', 'B']", ["A", "B"]),
        ("[[0, 1], [-1, 0]]", [[0, 1], [-1, 0]]),
        ("(1, 2.5)", (1, 2.5)),
        ("1, 2", (1, 2)),
        ('"AB"', "AB"),
        ("None", None),
        ("  [1]  ", [1]),
        ("[True]", [True]),
        ("[\n 1,\n 2]", [1, 2]),
    ],
)
def test_literals_are_read_as_python_reads_them(text, value):
    assert literal(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[x]",
        "f(1)",
        "[0]*9",
        "1+1",
        "().__class__",
        "[1][0]",
        "{1}",
        "{1: 2}",
        "b'a'",
        "1j",
        "...",
        "f'{1}'",
        "lambda: 1",
        "(x := 1)",
        "[c for c in 'a']",
        "1 if 1 else 2",
        "not 1",
        "[*'ab']",
        "",
        "[",
        "1\n2",
        "'a' % 1",
    ],
)
def test_what_is_no_literal_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the verifiers catch this one
        literal(text)


@pytest.mark.parametrize(
    "text",
    [
        "94*4 - 61 - 6",
        "(8/(3 - 8/3))",
        "-x**2/2 + C",
        "2*x**(3/2)",
        "exp(2*x)*sin(x)/3",
        "log(x, 2)",
        "sqrt(x)",
        "x**100",
        "7 // 2 % 3",
        "2240*x**3 + 3584*x**2*y - 896*z",
        "1.5e3*x",
        "alpha*x_1",
        " 1 ",
        "10**30",
        "2**-3",
        "Abs(x) + asinh(x) + arg",
        "E**x",
        "pi/2",
        "x**(x + 1)",
        "+1",
    ],
)
def test_arithmetic_is_let_through(text):
    require_arithmetic(text)


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9",
        "((9**99)**99)**99",
        "2**(2**20)",
        "1e999",
        "1e-9999",
        "9" * 61,
        "x(1)",
        "f(x)",
        "sin()",
        "sin(x, x)",
        "log(x, 2, 3)",
        "sin(x=1)",
        "x.subs",
        "x[0]",
        "'x'",
        "[x]",
        "x, y",
        "x = 1",
        "x == 1",
        "x < 1",
        "True",
        "None",
        "2j",
        "...",
        "x if x else x",
        "lambda x: x",
        "x!",
        "0.[1]",
        "1 # a",
        "1\n+1",
        "(1\n+1)",
        "\\\n1",
        "__import__",
        "_x",
        "x" * 21,
        "π",
        "²",
        "",
        "(" * 300 + "1" + ")" * 300,
        "+" * 600 + "1",
        "*sin",
        "x^2",
        "Integral(x, x)",
        "Symbol(x)",
        "S(x)",
        "eval(x)",
        "open(x)",
        "factorial(9)",
        "sin(*x)",
        "x @ y",
        "x and y",
    ],
)
def test_what_is_no_arithmetic_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the verifiers catch this one
        require_arithmetic(text)


def test_every_program_is_refused_by_both_and_every_bomb_at_once():
    assert len(set(PROGRAMS)) > 500
    for text in [*PROGRAMS, *BOMBS]:
        for read in (literal, require_arithmetic):
            begun = time.process_time()
            try:
                read(text)
                assert text not in PROGRAMS or (read is literal and text.startswith("24 #")), text
            except ValueError:
                pass
            assert time.process_time() - begun < 2, text[:40]


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("countdown", '{"max_numbers": 6}'),
        ("puzzle24", "{}"),
        ("polynomial_multiplication", "{}"),
        ("simple_integration", '{"max_terms": 6}'),
        ("intermediate_integration", "{}"),
    ],
)
def test_right_answers_are_arithmetic(family, config):
    source = dataset(family, config, 5)
    answers = [str(source[i]["answer"]) for i in range(20)]
    for text in answers:
        if "Integral" not in text:
            require_arithmetic(text)


def test_only_the_texts_of_the_problem_are_evaluated_whole():
    """In a process of its own, because what is replaced stays replaced."""
    script = """
import reasoning_gym
from learning.reasoning_gym import grammar as gym_grammar
from reasoning_gym.algorithmic import spiral_matrix
from reasoning_gym.code import codeio
from reasoning_gym.games import countdown
import sympy

gym_grammar.replace_evaluators()
here = 3
assert spiral_matrix.eval("1 << 4") == 16 and gym_grammar.evaluate("here") == 3, "problems are made as before"
gym_grammar.confine({"answer": "2*3", "metadata": {"problem": ["6 << 1", "Integral(x, x)"]}})
for read, *given in (
    (spiral_matrix.eval, "1 << 4"),
    (spiral_matrix.eval, compile("1", "", "eval")),
    (codeio.exec, "x = 1"),
    (codeio.compile, "1", "", "eval"),
    (countdown.parse_expr, "print(1)"),
    (sympy.parse_expr, "print(1)"),
    (sympy.sympify, "f(1)"),
):
    try:
        read(*given)
    except (ValueError, sympy.SympifyError):
        print("refused")
assert spiral_matrix.eval("6 << 1") == 12 and spiral_matrix.eval("[1]") == [1]
assert str(sympy.parse_expr("Integral(x, x)")) == "Integral(x, x)" and countdown.parse_expr("2*3 + 1") == 7
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\n" * 7, "")


def test_this_process_evaluates_as_before():
    assert gym_grammar.allowed is None
    import reasoning_gym.algorithmic.spiral_matrix as module

    assert "eval" not in vars(module)
