"""Boolean circuits as text: the problem is a truth table, the answer an expression, the testbench a simulator.

`01101001` are the outputs for abc = 000, 001, …, 111; an answer consists of inputs, `~`, `&`, `^`, `|` and parentheses,
with the precedence of Verilog. `01101001 not a&b` is the same problem with a failed attempt.
"""

import ast
import hashlib
import json
import re
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

NAMES = "abc"
LONGEST = 200
"""Maximum length of an expression, in characters."""
FORM = re.compile(rf"[abc~&^|()\s]{{1,{LONGEST}}}")
"""The characters of an expression."""
TIGHTNESS = {"|": 0, "^": 1, "&": 2}


def circuits(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    inputs: Annotated[int, Field(ge=2, le=3)] = 3,
    attempts: Annotated[float, Field(ge=0, le=1)] = 0.0,
) -> list[Row]:
    """Generate boolean circuits for the train or test split, by truth table; `answer` is a short expression.

    A share of `attempts` shows a wrong expression. Raise StepError if the tables (16 for two inputs, 256 for three)
    give too few.
    """
    rng = np.random.default_rng([seed, inputs])
    shortest = expressions(inputs)
    tables = [t for t in sorted(shortest) if _held_out(t, inputs, test_share) == (split == "test")]
    texts = sorted(shortest.values())
    rows: dict[str, Row] = {}
    for i in range(size * 20):
        if i % len(tables) == 0:
            rng.shuffle(tables)
        table = tables[i % len(tables)]
        shown = texts[int(rng.integers(len(texts)))] if rng.random() < attempts else None
        if shown is not None and simulate(shown, inputs) == table:
            continue
        row = problem(table, inputs, shown) | {"answer": shortest[table]}
        rows[row["id"]] = row
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"circuits: {len(rows)} {split} problems of {size}; lower `size`, or raise `attempts`")


def problem(table: int, inputs: int, attempt: str | None = None) -> dict[str, Any]:
    """Return the row of a truth table, without answer; with `attempt`, the prompt shows that failed expression."""
    text = f"{table:0{2**inputs}b}" + (f" not {attempt}" if attempt else "")
    return {
        "id": hashlib.sha256(f"circuits\n{text}".encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "answer": None,
        "family": "circuits",
        "metadata": json.dumps({"table": table, "inputs": inputs}),
    }


def pass_rate(row: Row, text: str) -> float:
    """Return the share of the test vectors that an expression answers correctly; 0 if it is not an expression.

    Raise StepError if the row is not a circuit.
    """
    try:
        kept = json.loads(row["metadata"] or "")
        table, inputs = int(kept["table"]), int(kept["inputs"])
    except (KeyError, TypeError, ValueError) as error:
        raise StepError(f"row {row['id']}: no circuit; its metadata says no table and inputs") from error
    found = simulate(text, inputs)
    return 0.0 if found is None else 1 - (found ^ table).bit_count() / 2**inputs


def simulate(text: str, inputs: int) -> int | None:
    """Return the truth table of an expression (first vector in the highest bit); None if it is not an expression."""
    if not FORM.fullmatch(text):
        return None
    try:
        return _table(ast.parse(text.strip(), mode="eval").body, _inputs(inputs), 2 ** (2**inputs) - 1)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _table(node: ast.expr, known: dict[str, int], ones: int) -> int:
    match node:
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            return ones ^ _table(inner, known, ones)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.BitXor() as sign, right=right):
            a, b = _table(left, known, ones), _table(right, known, ones)
            return a & b if isinstance(sign, ast.BitAnd) else a | b if isinstance(sign, ast.BitOr) else a ^ b
    raise ValueError("no expression of the inputs")


def _inputs(inputs: int) -> dict[str, int]:
    """Return the truth table of each input."""
    vectors = [f"{i:0{inputs}b}" for i in range(2**inputs)]
    return {NAMES[k]: int("".join(vector[k] for vector in vectors), 2) for k in range(inputs)}


@cache
def expressions(inputs: int) -> dict[int, str]:
    """Return a short expression of every truth table: shorter ones are combined until nothing improves."""
    ones, target = 2 ** (2**inputs) - 1, 2 ** (2**inputs)
    # (precedence of the outermost operator, text) of the shortest found so far; a name or `~` has the highest.
    found: dict[int, tuple[int, str]] = {table: (3, name) for name, table in _inputs(inputs).items()}
    changed = True
    while changed or len(found) < target:
        changed = False
        for a in sorted(found):
            changed |= _offer(found, ones ^ a, 3, "~" + _wrapped(found[a], 3))
            for b in sorted(found):
                for sign, table in (("&", a & b), ("|", a | b), ("^", a ^ b)):
                    tight = TIGHTNESS[sign]
                    text = f"{_wrapped(found[a], tight)}{sign}{_wrapped(found[b], tight)}"
                    changed |= _offer(found, table, tight, text)
    return {table: text for table, (_, text) in found.items()}


def _wrapped(expression: tuple[int, str], tight: int) -> str:
    return expression[1] if expression[0] >= tight else f"({expression[1]})"


def _offer(found: dict[int, tuple[int, str]], table: int, tight: int, text: str) -> bool:
    if table in found and (len(found[table][1]), found[table][1]) <= (len(text), text):
        return False
    found[table] = (tight, text)
    return True


def _held_out(table: int, inputs: int, test_share: float) -> bool:
    digest = hashlib.sha256(f"circuits\n{inputs}\n{table}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < test_share * 2**64
