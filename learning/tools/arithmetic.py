"""Arithmetic from text: numbers, + − * / // % ** and brackets, exactly; nothing else is ever evaluated."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

LONGEST = 200
"""Characters of an expression: a parser's depth is bounded by them."""
BITS = 4096
"""Of a result's numerator, and of a power's, at most."""
WORDS = re.compile(r"[0-9.+\-*/%() ]+")
OPERATORS: dict[type[ast.AST], Callable[..., Fraction]] = {
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
    """The value of an expression: whole numbers in full, others with ten significant digits.

    Raises ValueError, with words fit for whoever wrote it, for what is no arithmetic, has no value, or one too large.
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
    """A whole power; raises ValueError for another, and for one whose digits would fill pages."""
    if exponent.denominator != 1:
        raise ValueError("powers must be whole")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and bits * abs(exponent.numerator) > BITS:
        raise ValueError("the result is too large")
    return Fraction(base) ** int(exponent)
