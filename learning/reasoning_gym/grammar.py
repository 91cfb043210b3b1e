"""Restricted evaluation of a model's text by verifiers of reasoning-gym: literals and arithmetic, never a program.

Some verifiers pass the answer to `eval` or to sympy's `parse_expr`, which is `eval` behind a tokenizer.
`replace_evaluators` replaces these functions in every module of reasoning-gym: `eval` reads literals, `parse_expr`
accepts only arithmetic of bounded size, `exec` and `compile` always raise. A text that the library itself wrote into
the problem is evaluated as before. A rejected text raises ValueError, like a text that cannot be parsed, and gets the
verifier's score for such texts.
"""

import ast
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

from schemas.base import JsonObject

LONGEST_LITERAL, LONGEST_EXPRESSION = 20_000, 5_000
"""Limits of characters."""
MAX_NODES, MAX_DEPTH = 4_000, 500
MAX_BITS = 20_000
"""Limit of bits of any integer in the evaluation of an expression whose symbols are 1."""
DIGITS, EXPONENT = 60, 300
"""Limits of the digits of a number literal, and of its power of ten."""
FUNCTION = re.compile("a?(sin|cos|tan|cot|sec|csc)h?|exp|log|ln|sqrt|cbrt|[Aa]bs|erf|[ESC]i|li")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,19}")
WRITTEN = re.compile(r"[0-9A-Za-z_.,+\-*/%() \t]*")
"""Texts that sympy's tokenizer and Python's parser read alike: no comments, quotes, continuation lines, factorials."""
POWER_OF_TEN = re.compile(r"[\d.][eE][+-]?[\d_]{4}")
NAN = re.compile("nan", re.IGNORECASE)
NAN_IS_RIGHT = frozenset({"complex_arithmetic", "number_sorting"})
"""Families whose verifier gives nan the full score, because every comparison of an error with nan is false."""

LITERALS = (ast.Expression, ast.List, ast.Tuple, ast.Constant, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load)
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub)


def literal(text: str) -> Any:
    """Return the value of a Python literal of lists, tuples, strings and numbers; raise ValueError for other text."""
    tree = parsed(text, LONGEST_LITERAL)
    for node in ast.walk(tree):
        if not isinstance(node, LITERALS):
            raise ValueError(f"{type(node).__name__} is not a literal")
        if isinstance(node, ast.Constant) and not (node.value is None or isinstance(node.value, str | int | float)):
            raise ValueError(f"{type(node.value).__name__} is not a literal of an answer")
    return ast.literal_eval(tree)


def require_arithmetic(text: str) -> None:
    """Raise ValueError unless the text is arithmetic with symbols and known functions, of bounded size."""
    if not WRITTEN.fullmatch(text.strip()) or POWER_OF_TEN.search(text):
        raise ValueError("a character that arithmetic has not, or a number too large or too small")
    bits(parsed(text, LONGEST_EXPRESSION).body)


def means_no_number(family: str | None, text: str) -> bool:
    """Return whether an answer contains nan and the family's verifier would accept it."""
    return family in NAN_IS_RIGHT and NAN.search(text) is not None


def parsed(text: str, longest: int) -> ast.Expression:
    """Return the syntax tree of an expression; raise ValueError if its length, size or depth exceeds a limit."""
    if len(text) > longest:
        raise ValueError(f"{len(text)} characters, at most {longest}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("no expression") from error
    level, nodes = [tree.body], 0
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level or nodes > MAX_NODES:
        raise ValueError(f"more than {MAX_NODES} parts or {MAX_DEPTH} levels")
    return tree


def bits(node: ast.expr) -> float:
    """Return an upper bound of the bits of a value, symbols counted as 1; raise ValueError above `MAX_BITS`."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            size = bits_of_number(ast.unparse(node), value)
        case ast.Name(id=name) if NAME.fullmatch(name):
            size = 1.0
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            size = bits(operand)
        case ast.Call(func=ast.Name(id=name), args=[_, *rest] as given, keywords=[]) if FUNCTION.fullmatch(name):
            if rest and (name != "log" or len(rest) > 1):
                raise ValueError(f"{name} of {len(given)} arguments")
            size = sum(map(bits, given))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            size = bits(left) * 2 ** min(bits(right), 64.0)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, OPERATORS):
            size = bits(left) + bits(right)
        case _:
            raise ValueError(f"{type(node).__name__} is not arithmetic")
    if size > MAX_BITS:
        raise ValueError("a number without end")
    return size


def bits_of_number(text: str, value: float) -> float:
    """Return the bits of a number literal; raise ValueError if it has too many digits or too large a power of ten."""
    if len(text) > DIGITS or not math.isfinite(value):
        raise ValueError("a number too long")
    if value and abs(math.log10(abs(value))) > EXPONENT:
        raise ValueError("a number too large or too small")
    return math.log2(abs(value) + 2) + (abs(math.log2(abs(value))) if 0 < abs(value) < 1 else 0)


def texts_of(value: Any) -> Iterator[str]:
    """Yield every text in a problem: those that the library wrote."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts_of(part)
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from texts_of(part)


allowed: frozenset[str] | None = None
"""Texts that are evaluated without restriction; None: all, because this process reads no text of a model."""


def confine(entry: JsonObject) -> None:
    """Restrict modules of reasoning-gym to evaluate only literals, arithmetic, and the texts of this problem.

    This requires an earlier call of `replace_evaluators`.
    """
    global allowed
    allowed = frozenset(texts_of(entry))


def replace_evaluators() -> None:
    """Replace the evaluators of the modules of reasoning-gym, and `parse_expr` in those of sympy."""
    import reasoning_gym  # noqa: F401 (loads the modules that are changed)
    from sympy.parsing.sympy_parser import parse_expr

    def parse(text: str, *args: Any, **options: Any) -> Any:
        if allowed is not None and text not in allowed:
            require_arithmetic(text)
        return parse_expr(text, *args, **options)

    ours = {"eval": evaluate, "exec": execute, "compile": compiled}
    for path, module in sorted(sys.modules.items()):
        package = path.split(".")[0]
        if package in {"reasoning_gym", "sympy"}:
            names = vars(module)
            names.update([(name, parse) for name, value in names.items() if value is parse_expr])
            if package == "reasoning_gym":
                names.update([(name, function) for name, function in ours.items() if name not in names])


def evaluate(source: Any, *scopes: Any) -> Any:
    """Replace `eval`: evaluate a literal or a text of this problem; raise ValueError for other input."""
    if allowed is None or (isinstance(source, str) and source in allowed):
        caller = sys._getframe(1)
        return eval(source, *(scopes or (caller.f_globals, caller.f_locals)))
    if not isinstance(source, str):
        raise ValueError("code is not evaluated here")
    return literal(source)


def execute(source: Any, *scopes: Any) -> None:
    """Replace `exec`: families of code problems execute the library's own programs when they generate a problem."""
    if allowed is not None:
        raise ValueError("programs are not run here")
    caller = sys._getframe(1)
    exec(source, *(scopes or (caller.f_globals, caller.f_locals)))


def compiled(*args: Any, **options: Any) -> Any:
    """Replace `compile`: raise ValueError once `confine` was called."""
    if allowed is not None:
        raise ValueError("programs are not compiled here")
    return compile(*args, **options)
