"""Rewards for arithmetic expressions, evaluated from their syntax tree without running code."""

import ast
import re
from collections import Counter
from fractions import Fraction

from learning.data.rows import Row
from learning.toy_tasks.countdown import read_problem

FORM = re.compile(r"[-+*/()\d\s]{1,200}")
"""The characters of an expression."""


def reaches(rows: list[Row], completions: list[str], *, marker: str = "#") -> list[float | None]:
    """1 if the expression after the last marker (or the entire text) solves the row's countdown problem, else 0.

    Every number may be used once; operators are + − * / and parentheses. Raise StepError if a row is not a countdown.
    """
    return [float(solves(row, text.rpartition(marker)[2])) for row, text in zip(rows, completions, strict=True)]


def solves(row: Row, text: str) -> bool:
    """Return whether the expression uses the row's numbers, each at most once, and equals its target."""
    numbers, target = read_problem(row)
    if not FORM.fullmatch(text):
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
        used: list[int] = []
        value = _evaluate(tree.body, used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return False
    return value == target and not Counter(used) - Counter(numbers)


def _evaluate(node: ast.expr, used: list[int]) -> Fraction:
    """Return the value of an expression and append the numbers that it uses; raise ValueError for other syntax."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if not isinstance(node, ast.BinOp):
        raise ValueError("not a sum, difference, product or quotient")
    left, right = _evaluate(node.left, used), _evaluate(node.right, used)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
    raise ValueError("not a sum, difference, product or quotient")
