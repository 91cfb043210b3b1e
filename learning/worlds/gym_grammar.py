"""What a verifier of reasoning-gym may evaluate of a model's text: literals and arithmetic, never a program.

Some verifiers hand the answer to `eval` or to sympy's `parse_expr`, which is `eval` behind a tokenizer.
`replace_evaluators` gives every module of reasoning-gym other functions under these names: `eval` reads literals,
`parse_expr` refuses what is not arithmetic of bounded size, `exec` and `compile` refuse. A text that the library itself
wrote into the problem is evaluated as before. What is refused raises ValueError, as a text does that cannot be parsed;
the verifier gives it the score that it gives to those.
"""

import ast
import math
import re
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any

LONGEST_LITERAL, LONGEST_EXPRESSION = 20_000, 5_000
"""Characters."""
MOST_NODES, DEEPEST = 4_000, 500
MOST_BITS = 20_000
"""Of any integer that an expression can come to, were its symbols 1."""
DIGITS, EXPONENT = 60, 300
"""Of a number written out, and of its power of ten."""
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth asinh acosh atanh "
    "exp log ln sqrt cbrt Abs abs erf Ei Si Ci li".split()
)
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,19}")
WRITTEN = re.compile(r"[0-9A-Za-z_.,+\-*/%() \t]*")
"""What sympy's tokenizer and Python's parser read alike: no comments, quotes, continuation lines, factorials."""
NAN = re.compile("nan", re.IGNORECASE)
NAN_IS_RIGHT = frozenset({"complex_arithmetic", "number_sorting"})
"""Families whose verifier gives full marks to what is not a number: no comparison with it says that it is far off."""

LITERALS = (ast.Expression, ast.List, ast.Tuple, ast.Constant, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load)
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub)


def literal(text: str) -> Any:
    """The value of a Python literal made of lists, tuples, strings and numbers; raises ValueError for all else."""
    tree = parsed(text, LONGEST_LITERAL)
    for node in ast.walk(tree):
        if not isinstance(node, LITERALS):
            raise ValueError(f"{type(node).__name__} is no literal")
        if isinstance(node, ast.Constant) and not (node.value is None or isinstance(node.value, str | int | float)):
            raise ValueError(f"{type(node.value).__name__} is no literal of an answer")
    return ast.literal_eval(tree)


def require_arithmetic(text: str) -> None:
    """Raise ValueError unless the text is arithmetic with symbols and known functions, of bounded size."""
    if not WRITTEN.fullmatch(text.strip()):
        raise ValueError("a character that arithmetic has not")
    bits(parsed(text, LONGEST_EXPRESSION).body)


def means_no_number(family: str | None, text: str) -> bool:
    """Whether an answer names nan to a verifier that would take it for right."""
    return family in NAN_IS_RIGHT and NAN.search(text) is not None


def parsed(text: str, longest: int) -> ast.Expression:
    """The syntax tree of an expression of bounded length, size and depth; raises ValueError."""
    if len(text) > longest:
        raise ValueError(f"{len(text)} characters, at most {longest}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("no expression") from error
    level, nodes = [tree.body], 0
    for _ in range(DEEPEST):
        nodes += len(level)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level or nodes > MOST_NODES:
        raise ValueError(f"more than {MOST_NODES} parts or {DEEPEST} levels")
    return tree


def bits(node: ast.expr) -> float:
    """A bound of the bits of what an expression comes to, symbols counted as 1; raises ValueError."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            found = bits_of_number(ast.unparse(node), value)
        case ast.Name(id=name) if NAME.fullmatch(name):
            found = 1.0
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            found = bits(operand)
        case ast.Call(func=ast.Name(id=name), args=[_, *rest] as given, keywords=[]) if name in FUNCTIONS:
            if rest and (name != "log" or len(rest) > 1):
                raise ValueError(f"{name} of {len(given)} arguments")
            found = sum(map(bits, given))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            found = bits(left) * 2 ** min(bits(right), 64.0)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, OPERATORS):
            found = bits(left) + bits(right)
        case _:
            raise ValueError(f"{type(node).__name__} is no arithmetic")
    if found > MOST_BITS:
        raise ValueError("a number without end")
    return found


def bits_of_number(text: str, value: float) -> float:
    """Bits of a number written out; raises ValueError for one of too many digits or too large a power of ten."""
    if len(text) > DIGITS or not math.isfinite(value):
        raise ValueError("a number too long")
    if value and abs(math.log10(abs(value))) > EXPONENT:
        raise ValueError("a number too large or too small")
    return math.log2(abs(value) + 2) + (abs(math.log2(abs(value))) if 0 < abs(value) < 1 else 0)


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a problem: what the library wrote itself."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts_of(part)
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from texts_of(part)


def replace_evaluators(entry: dict[str, Any]) -> None:
    """From here on modules of reasoning-gym evaluate literals, arithmetic, and the texts of this problem alone.

    For a process that scores one text and ends.
    """
    own = frozenset(texts_of(entry))
    made = {"eval": evaluator(own), "parse_expr": parser(own), "exec": refuse, "compile": refuse}
    for module, name, what in places():
        vars(module)[name] = made[what]


@lru_cache(maxsize=1)
def genuine_parser() -> Callable[..., Any]:
    """Sympy's own `parse_expr`; to be asked for before it is replaced."""
    from sympy.parsing.sympy_parser import parse_expr

    return parse_expr


@lru_cache(maxsize=1)
def places() -> list[tuple[ModuleType, str, str]]:
    """Modules, the names in them that are replaced, and by which replacement."""
    genuine = genuine_parser()
    found = []
    for path, module in sorted(sys.modules.items()):
        if path.split(".")[0] not in {"reasoning_gym", "sympy"}:
            continue
        names = vars(module)
        found += [(module, name, "parse_expr") for name, value in names.items() if value is genuine]
        if path.split(".")[0] == "reasoning_gym":
            found += [(module, name, name) for name in ("eval", "exec", "compile") if name not in names]
    return found


def evaluator(own: frozenset[str]) -> Callable[..., Any]:
    """In place of `eval`."""

    def evaluate(source: Any, *scopes: Any) -> Any:
        if not isinstance(source, str):
            raise ValueError("code is not evaluated here")
        return eval(source, *(scopes or ({},))) if source in own else literal(source)

    return evaluate


def parser(own: frozenset[str]) -> Callable[..., Any]:
    """In place of sympy's `parse_expr`, which `sympify` calls as well."""
    genuine = genuine_parser()

    def parse(text: str, *args: Any, **options: Any) -> Any:
        if text not in own:
            require_arithmetic(text)
        return genuine(text, *args, **options)

    return parse


def refuse(*args: Any, **options: Any) -> Any:
    """In place of `exec` and `compile`."""
    raise ValueError("programs are not run here")
