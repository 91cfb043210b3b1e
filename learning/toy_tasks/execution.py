"""An interpreter for small programs of straight-line Python.

Text of a model is never executed by Python: it is parsed, and only whole numbers, lists of them, arithmetic,
comparisons, slices, comprehensions and a few functions are supported. Time and size are bounded. The size of a value
includes nested values at any depth, so that no single operation is long; every operation uses up budget according to
the sizes of its inputs and its result.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

LONGEST_TEXT = 400
LONGEST_LIST = 100
LARGEST = 10**9
LARGEST_SIZE = 1_000
"""Maximum number of numbers and lists in a value; one that occurs twice counts twice."""
DEEPEST = 60
"""Maximum depth of a program's syntax tree, and of a value."""
STEPS = 5_000
"""Maximum number of evaluated nodes of the syntax tree."""
WORK = 100_000
"""Maximum of the summed sizes of all inputs and results of operations."""
BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "len": len,
    "list": list,
    "max": max,
    "min": min,
    "reversed": lambda values: list(reversed(values)),
    "sorted": sorted,
    "sum": sum,
}


Value = int | list["Value"]
"""A value of the language."""


class ProgramError(Exception):
    """A text is not a program, or a program fails."""


class LanguageError(ProgramError):
    """A program has what this small language lacks, such as a loop; Python itself may run it."""


def evaluate(text: str, inputs: Mapping[str, Value]) -> Value:
    """Return the value of an expression; raise ProgramError if it fails."""
    return _guarded(lambda: _Run(inputs).value(_parsed(text, "eval").body))


def execute(text: str, inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Run assignments, separated by `;` or newlines; return the final value of each variable that they define.

    Raise ProgramError if the program fails.
    """
    return _guarded(lambda: _Run(inputs).assigned(_parsed(text, "exec").body))


def _parsed(text: str, mode: str) -> Any:
    if len(text) > LONGEST_TEXT:
        raise ProgramError("too long")
    return ast.parse(text.strip(), mode=mode)


def _guarded(made: Callable[[], Any]) -> Any:
    try:
        return made()
    except (SyntaxError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError, MemoryError) as error:
        raise ProgramError(str(error)) from error


def size_of(value: Any) -> int:
    """Return the number of numbers and lists in a value, including itself; raise ProgramError if it exceeds a bound."""
    size, level, depth = 1, [value], 0
    while level:
        inside: list[Any] = []
        for one in level:
            if isinstance(one, list):
                if len(one) > LONGEST_LIST:
                    raise ProgramError("a list is too large")
                inside += one
            elif not isinstance(one, bool | int) or not -LARGEST <= one <= LARGEST:
                raise ProgramError("neither a whole number nor a list, or too large")
            if size + len(inside) > LARGEST_SIZE:
                raise ProgramError("a value is too large")
        size, level, depth = size + len(inside), inside, depth + 1
        if depth > DEEPEST:
            raise ProgramError("a value is too large")
    return size


class _Run:
    """One execution, with its variables and its remaining steps."""

    def __init__(self, inputs: Mapping[str, Value]) -> None:
        self.names, self.left, self.work, self.depth = dict(inputs), STEPS, WORK, 0

    def assigned(self, body: list[ast.stmt]) -> dict[str, Value]:
        defined: dict[str, Value] = {}
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.names[name] = defined[name] = self.value(value)
                case _:
                    raise LanguageError("not an assignment to a variable")
        if not defined:
            raise ProgramError("defines nothing")
        return defined

    def value(self, node: ast.expr) -> Any:
        """Return the value of a node; raise ProgramError if it exceeds a bound."""
        self.left -= 1
        if self.left < 0 or self.depth >= DEEPEST:
            raise ProgramError("takes too long")
        self.depth += 1
        value = self._value(node)
        self.depth -= 1
        # A value counts twice: as the result of its node, and as an input of the enclosing operation.
        self.work -= 2 * size_of(value)
        if self.work < 0:
            raise ProgramError("takes too long")
        return value

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value) if isinstance(value, int):
                return value
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.List(elts=items):
                return [self.value(item) for item in items]
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self.value(inner)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in BINARY:
                return self._combined(BINARY[type(sign)], self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in COMPARE:
                return COMPARE[type(sign)](self.value(left), self.value(right))
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.value(body if self.value(test) else other)
            case ast.Subscript(value=values, slice=ast.Slice(lower=low, upper=high, step=step)):
                bounds = [None if bound is None else self.value(bound) for bound in (low, high, step)]
                return self.value(values)[slice(*bounds)]
            case ast.Subscript(value=values, slice=place):
                return self.value(values)[self.value(place)]
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                return FUNCTIONS[name](*(self.value(arg) for arg in args))
            case ast.ListComp(generators=[ast.comprehension() as loop], elt=item):
                return self._comprehended(loop, item)
        raise LanguageError("not of this small language")

    @staticmethod
    def _combined(how: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        repeated = how is operator.mul and isinstance(a, list) != isinstance(b, list)
        if repeated and len(a if isinstance(a, list) else b) * (b if isinstance(a, list) else a) > LONGEST_LIST:
            raise ProgramError("too large")
        return how(a, b)

    def _comprehended(self, loop: ast.comprehension, item: ast.expr) -> list[Any]:
        if not isinstance(loop.target, ast.Name) or loop.is_async:
            raise LanguageError("not of this small language")
        name, outer, values = loop.target.id, dict(self.names), []
        for value in self.value(loop.iter):
            self.names[name] = value
            if all(self.value(test) for test in loop.ifs):
                values.append(self.value(item))
        self.names = outer
        return values
