"""Reward functions that a language model wrote: a small part of Python, parsed and computed here, never executed.

Shapes: N steps.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LONGEST, MOST_NODES = 4000, 400
"""Limits of characters and of parts of a function, which bound the depth and the time of its computation."""
LARGEST = 1e6
"""Rewards beyond are refused."""
BINARY: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "abs": (1, np.abs),
    "sqrt": (1, np.sqrt),
    "exp": (1, np.exp),
    "log": (1, np.log),
    "sin": (1, np.sin),
    "cos": (1, np.cos),
    "tanh": (1, np.tanh),
    "min": (2, np.minimum),
    "max": (2, np.maximum),
}
"""Functions that may be called, with their number of arguments."""


@dataclass(frozen=True)
class RewardCode:
    """A function that was read: its statements in order, the last of which is returned."""

    text: str
    statements: tuple[tuple[str, ast.expr], ...]

    def compute(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the rewards (N,) of steps from their named columns (N,). Raise ValueError unless all are finite."""
        known = {name: np.asarray(column, float) for name, column in columns.items()}
        value_N = np.zeros(len(next(iter(known.values()))))
        with np.errstate(all="ignore"):
            for name, expression in self.statements:
                value_N = known[name] = np.broadcast_to(_compute(expression, known), value_N.shape).astype(float)
        if not (np.abs(value_N) <= LARGEST).all():
            raise ValueError(f"a reward is not a number from -{LARGEST:g} to {LARGEST:g}")
        return value_N


def parse_reward(text: str, names: Sequence[str]) -> RewardCode:
    """Return the function `reward` in a text, of arguments among `names`. Raise ValueError with what is wrong with it.

    It has assignments to new names and one `return`; expressions have numbers, names, + − * / **, comparisons, `a if b
    else c`, and the functions of `FUNCTIONS`.
    """
    if len(text) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} characters")
    try:
        body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"it is no Python: {type(error).__name__}") from None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef) or body[0].name != "reward":
        raise ValueError("write one function `reward` and nothing else")
    if sum(1 for _ in ast.walk(body[0])) > MOST_NODES:
        raise ValueError("it is too long")
    known = _read_arguments(body[0], names)
    statements: list[tuple[str, ast.expr]] = []
    for place, line in enumerate(_skip_docstring(body[0].body)):
        target = line.targets[0] if isinstance(line, ast.Assign) and len(line.targets) == 1 else None
        if isinstance(line, ast.Return) and line.value is not None:
            _check(line.value, known)
            if place + 1 < len(_skip_docstring(body[0].body)):
                raise ValueError("nothing may follow `return`")
            return RewardCode(text.strip(), (*statements, ("return", line.value)))
        if not isinstance(line, ast.Assign) or not isinstance(target, ast.Name):
            raise ValueError(f"line {line.lineno}: write `name = expression` or `return expression`")
        _check(line.value, known)
        statements.append((target.id, line.value))
        known = known | {target.id}
    raise ValueError("it returns nothing")


def _read_arguments(function: ast.FunctionDef, names: Sequence[str]) -> frozenset[str]:
    given = function.args
    plain = [argument.arg for argument in given.args]
    others = given.posonlyargs or given.kwonlyargs or given.vararg or given.kwarg or given.defaults
    if others or function.decorator_list or not set(plain) <= set(names):
        raise ValueError(f"its arguments may be {', '.join(names)}")
    return frozenset(plain)


def _skip_docstring(lines: list[ast.stmt]) -> list[ast.stmt]:
    first = lines[0]
    described = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return lines[1:] if described else lines


def _check(node: ast.expr, known: frozenset[str]) -> None:
    """Raise ValueError unless an expression has nothing but what can be computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        if not abs(node.value) <= LARGEST:
            raise ValueError(f"a number is larger than {LARGEST:g}")
    elif isinstance(node, ast.Name):
        if node.id not in known:
            raise ValueError(f"there is no `{node.id[:40]}`")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        _check(node.operand, known)
    elif isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        _check(node.left, known)
        _check(node.right, known)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in BINARY:
        _check(node.left, known)
        _check(node.comparators[0], known)
    elif isinstance(node, ast.IfExp):
        for part in (node.test, node.body, node.orelse):
            _check(part, known)
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in FUNCTIONS
        and not node.keywords
    ):
        if len(node.args) != FUNCTIONS[node.func.id][0]:
            raise ValueError(f"`{node.func.id}` takes {FUNCTIONS[node.func.id][0]}")
        for part in node.args:
            _check(part, known)
    else:
        raise ValueError(f"{type(node).__name__} is not allowed")


def _compute(node: ast.expr, known: Mapping[str, np.ndarray]) -> Any:
    """Return the value of an expression that was checked."""
    if isinstance(node, ast.Constant):
        return float(node.value)  # pyright: ignore[reportArgumentType] -- `_check` lets numbers pass alone
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.UnaryOp):
        value = _compute(node.operand, known)
        return np.negative(value) if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        return BINARY[type(node.op)](_compute(node.left, known), _compute(node.right, known))
    if isinstance(node, ast.Compare):
        compared = BINARY[type(node.ops[0])](_compute(node.left, known), _compute(node.comparators[0], known))
        return np.asarray(compared, float)
    if isinstance(node, ast.IfExp):
        chosen = np.asarray(_compute(node.test, known)) != 0
        return np.where(chosen, _compute(node.body, known), _compute(node.orelse, known))
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return FUNCTIONS[node.func.id][1](*(_compute(part, known) for part in node.args))
