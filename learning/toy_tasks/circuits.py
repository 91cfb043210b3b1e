"""Boolean circuits as text: the problem is a truth table, the answer an expression, the testbench a simulator.

`01101001` are the outputs for abc = 000, 001, …, 111; an answer consists of inputs, `~`, `&`, `^`, `|` and parentheses,
with the precedence of Verilog. `01101001 not a&b` is the same problem with a failed attempt.
"""

import ast
import re
from functools import cache
from itertools import count
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import (
    Rate,
    Size,
    Split,
    TestShare,
    draw_rows,
    hash_text,
    is_in_split,
    make_row,
    read_metadata,
)

NAMES = "abc"
LONGEST = 200
"""Maximum length of an expression, in characters."""
FORM = re.compile(rf"[abc~&^|()\s]{{1,{LONGEST}}}")
"""The characters of an expression."""
TIGHTNESS = {"|": 0, "^": 1, "&": 2}


def circuits(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    inputs: Annotated[int, Field(ge=2, le=3)] = 3,
    attempts: Rate = 0.0,
) -> list[Row]:
    """Generate boolean circuits for the train or test split, by truth table; `answer` is a short expression.

    A share of `attempts` shows a wrong expression. Raise StepError if the tables (16 for two inputs, 256 for three)
    give too few.
    """
    rng = np.random.default_rng([seed, inputs])
    shortest = find_expressions(inputs)
    tables = [t for t in sorted(shortest) if is_in_split(hash_text(f"circuits\n{inputs}\n{t}"), split, test_share)]
    texts = sorted(shortest.values())
    draws = count()

    def draw(_: dict[str, Row]) -> Row | None:
        i = next(draws)
        if i % len(tables) == 0:
            rng.shuffle(tables)
        table = tables[i % len(tables)]
        shown = texts[int(rng.integers(len(texts)))] if rng.random() < attempts else None
        if shown is not None and simulate(shown, inputs) == table:
            return None
        return make_problem(table, inputs, shown) | {"answer": shortest[table]}

    return draw_rows(draw, size, size * 20, "circuits", split, "lower `size`, or raise `attempts`")


def make_problem(table: int, inputs: int, attempt: str | None = None) -> Row:
    """Return the row of a truth table, without answer; with `attempt`, the prompt shows that failed expression."""
    text = f"{table:0{2**inputs}b}" + (f" not {attempt}" if attempt else "")
    return make_row("circuits", text, None, {"table": table, "inputs": inputs})


def compute_pass_rate(row: Row, text: str) -> float:
    """Return the share of the test vectors that an expression answers correctly; 0 if it is not an expression.

    Raise StepError if the row is not a circuit.
    """
    table, inputs = read_metadata(row, "circuits", lambda about: (int(about["table"]), int(about["inputs"])))
    simulated = simulate(text, inputs)
    return 0.0 if simulated is None else 1 - (simulated ^ table).bit_count() / 2**inputs


def simulate(text: str, inputs: int) -> int | None:
    """Return the truth table of an expression (first vector in the highest bit); None if it is not an expression."""
    if not FORM.fullmatch(text):
        return None
    try:
        return _table(ast.parse(text.strip(), mode="eval").body, _inputs(inputs), 2 ** (2**inputs) - 1)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _table(node: ast.expr, values: dict[str, int], ones: int) -> int:
    match node:
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            return ones ^ _table(inner, values, ones)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.BitXor() as sign, right=right):
            a, b = _table(left, values, ones), _table(right, values, ones)
            return a & b if isinstance(sign, ast.BitAnd) else a | b if isinstance(sign, ast.BitOr) else a ^ b
    raise ValueError("no expression of the inputs")


def _inputs(inputs: int) -> dict[str, int]:
    """Return the truth table of each input."""
    vectors = [f"{i:0{inputs}b}" for i in range(2**inputs)]
    return {NAMES[k]: int("".join(vector[k] for vector in vectors), 2) for k in range(inputs)}


@cache
def find_expressions(inputs: int) -> dict[int, str]:
    """Return a short expression of every truth table: shorter ones are combined until nothing improves."""
    ones, target = 2 ** (2**inputs) - 1, 2 ** (2**inputs)
    # (precedence of the outermost operator, text) of the shortest found so far; a name or `~` has the highest.
    shortest: dict[int, tuple[int, str]] = {table: (3, name) for name, table in _inputs(inputs).items()}
    changed = True
    while changed or len(shortest) < target:
        changed = False
        for a in sorted(shortest):
            changed |= _offer(shortest, ones ^ a, 3, "~" + _wrapped(shortest[a], 3))
            for b in sorted(shortest):
                for sign, table in (("&", a & b), ("|", a | b), ("^", a ^ b)):
                    tight = TIGHTNESS[sign]
                    text = f"{_wrapped(shortest[a], tight)}{sign}{_wrapped(shortest[b], tight)}"
                    changed |= _offer(shortest, table, tight, text)
    return {table: text for table, (_, text) in shortest.items()}


def _wrapped(expression: tuple[int, str], tight: int) -> str:
    return expression[1] if expression[0] >= tight else f"({expression[1]})"


def _offer(shortest: dict[int, tuple[int, str]], table: int, tight: int, text: str) -> bool:
    if table in shortest and (len(shortest[table][1]), shortest[table][1]) <= (len(text), text):
        return False
    shortest[table] = (tight, text)
    return True
