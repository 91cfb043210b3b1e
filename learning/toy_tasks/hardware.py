"""Hardware in a few characters: combinational expressions of a, b, c, and one-bit registers with reset.

`a&(b|c)` is described as `out is a and (b or c)`. A register is given by its next state, where a is the input, b the
state, c the reset: `next is (a xor b) and not c`. Code is tested by a testbench that is generated from the golden code:
the whole truth table, or the outputs over all short sequences of inputs after a reset.
"""

import re
from functools import lru_cache
from itertools import product
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.circuits import LONGEST, simulate
from learning.toy_tasks.rows import (
    Rate,
    Size,
    Split,
    TestShare,
    draw_rows,
    is_in_split,
    make_row,
    read_metadata,
)

WORDS = {"&": " and ", "|": " or ", "^": " xor ", "~": "not "}
CYCLES = 3
"""Clock cycles after the reset."""


def modules(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    registers: Rate = 0.25,
    operators: Annotated[int, Field(ge=1, le=4)] = 2,
) -> list[Row]:
    """Generate `size` descriptions of hardware modules for the train or test split; `answer` is the golden code.

    A share of `registers` are registers. Raise StepError if there are too few.
    """
    rng = np.random.default_rng([seed, operators])

    def draw(_: dict[str, Row]) -> Row | None:
        kind = "next" if rng.random() < registers else "out"
        code = _draw_expression(int(rng.integers(1, operators + 1)), rng)
        if kind == "next":
            code = f"{code if re.fullmatch(r'~?[abc]', code) else f'({code})'}&~c"
        text = describe_code(code, kind)
        row = make_row("modules", text, code, {"kind": kind})
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, 200 * size + 1000, "modules", split, "lower `size` or raise `operators`")


def describe_code(code: str, kind: str) -> str:
    """Return code in words."""
    return f"{kind} is " + re.sub(r"[&|^~]", lambda match: WORDS[match[0]], code)


def regenerated(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.3) -> str:
    """Write the code again from its description; at `error_rate` without the parentheses."""
    code = row["prompt"][-1]["content"].partition(" is ")[2]
    for sign, word in WORDS.items():
        code = code.replace(word, sign)
    return re.sub(r"[()]", "", code) if rng.random() < error_rate else code


def is_equivalent(row: Row, code: str) -> bool:
    """Return whether code passes the testbench of a row's golden code; raise StepError if the row is not a module."""
    kind = read_metadata(row, "modules", lambda about: about["kind"])
    if len(code := code.strip()) > LONGEST:
        return False
    computed = compute_outputs(code, kind)
    return computed is not None and computed == compute_outputs(row["answer"].strip(), kind)


@lru_cache(maxsize=4096)
def compute_outputs(code: str, kind: str) -> tuple[int, ...] | None:
    """Return the outputs for abc = 000 … 111, or the states of a register over all input sequences.

    A sequence starts in either state with a reset. None if the text is not code.
    """
    table = simulate(code, 3)
    if table is None:
        return None
    at = [table >> (7 - i) & 1 for i in range(8)]
    if kind == "out":
        return tuple(at)
    states = []
    for state, first, *rest in product((0, 1), (0, 1), *[range(4)] * CYCLES):
        state = at[4 * first + 2 * state + 1]
        states.append(state)
        for bits in rest:
            state = at[4 * (bits >> 1) + 2 * state + (bits & 1)]
            states.append(state)
    return tuple(states)


def _draw_expression(operators: int, rng: np.random.Generator) -> str:
    """Return a random expression with `operators` binary operators."""
    if operators == 0:
        return ("~" if rng.random() < 0.25 else "") + "abc"[int(rng.integers(3))]
    left = int(rng.integers(operators))
    sides = [_draw_expression(left, rng), _draw_expression(operators - 1 - left, rng)]
    sign = "&|^"[int(rng.integers(3))]
    return sign.join(side if re.fullmatch(r"~?[abc]", side) else f"({side})" for side in sides)
