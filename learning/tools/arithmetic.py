"""Exact evaluation of arithmetic in text: numbers, + − * / // % ** and brackets, nothing else."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

LONGEST = 200
"""Limit of characters of an expression, which bounds the depth of its parsing."""
BITS = 4096
"""Limit of bits of a numerator."""
WORDS = re.compile(r"[0-9.+\-*/%() ]+")
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculate(text: str) -> str:
    """Return the value of an expression: integers exactly, other numbers with ten significant digits.

    Raise ValueError, with a message for its author, if it is not arithmetic or its value is undefined or too large.
    """
    text = text.strip()
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    if not WORDS.fullmatch(text):
        raise ValueError("write numbers, + - * / // % ** and brackets")
    try:
        value = _evaluate(ast.parse(text, mode="eval").body)
        if value.numerator.bit_length() > BITS:
            raise OverflowError
        return str(value.numerator) if value.denominator == 1 else format(float(value), ".10g")
    except SyntaxError:
        raise ValueError("this is no arithmetic") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None


def _evaluate(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_evaluate(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left), _evaluate(node.right)
        return _power(left, right) if isinstance(node.op, ast.Pow) else OPERATORS[type(node.op)](left, right)
    raise ValueError("this is no arithmetic")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    """Return an integer power; raise ValueError for another exponent or a result that is too large."""
    if exponent.denominator != 1:
        raise ValueError("powers must be whole")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * abs(exponent.numerator) > BITS:
        raise ValueError("the result is too large")
    return Fraction(base) ** int(exponent)
