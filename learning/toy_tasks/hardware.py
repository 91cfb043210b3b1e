"""Hardware in a few characters: combinational expressions of a, b, c, and one-bit registers with reset.

`a&(b|c)` is described as `out is a and (b or c)`. A register is given by its next state, where a is the input, b the
state, c the reset: `next is (a xor b) and not c`. Code is tested by a testbench that is generated from the golden code:
the whole truth table, or the outputs over all short sequences of inputs after a reset.
"""

import hashlib
import json
import re
from functools import lru_cache
from itertools import product
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.circuits import LONGEST, simulate
from schemas.errors import StepError

WORDS = {"&": " and ", "|": " or ", "^": " xor ", "~": "not "}
CYCLES = 3
"""Clock cycles after the reset."""
Rate = Annotated[float, Field(ge=0, le=1)]


def modules(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    registers: Rate = 0.25,
    operators: Annotated[int, Field(ge=1, le=4)] = 2,
) -> list[Row]:
    """Generate `size` descriptions of hardware modules for the train or test split; `answer` is the golden code.

    A share of `registers` are registers. Raise StepError if there are too few.
    """
    rng = np.random.default_rng([seed, operators])
    rows: dict[str, Row] = {}
    for _ in range(200 * size + 1000):
        kind = "next" if rng.random() < registers else "out"
        code = _drawn(int(rng.integers(1, operators + 1)), rng)
        if kind == "next":
            code = f"{code if re.fullmatch(r'~?[abc]', code) else f'({code})'}&~c"
        text = described(code, kind)
        if text in rows or _held_out(text, test_share) != (split == "test"):
            continue
        rows[text] = {
            "id": hashlib.sha256(f"modules\n{text}".encode()).hexdigest()[:16],
            "prompt": [{"role": "user", "content": text}],
            "answer": code,
            "family": "modules",
            "metadata": json.dumps({"kind": kind}),
        }
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"modules: found {len(rows)} {split} descriptions of {size}; lower `size` or raise `operators`")


def described(code: str, kind: str) -> str:
    """Return code in words."""
    return f"{kind} is " + re.sub(r"[&|^~]", lambda found: WORDS[found[0]], code)


def regenerated(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.3) -> str:
    """Write the code again from its description; at `error_rate` without the parentheses."""
    code = row["prompt"][-1]["content"].partition(" is ")[2]
    for sign, word in WORDS.items():
        code = code.replace(word, sign)
    return re.sub(r"[()]", "", code) if rng.random() < error_rate else code


def round_trip(row: Row) -> bool:
    """Keep rows whose completion does what the golden code does (code → description → code, CodeV-R1 2025)."""
    return equivalent(row, row["completion"][-1]["content"])


def equivalent(row: Row, code: str) -> bool:
    """Return whether code passes the testbench of a row's golden code; raise StepError if the row is not a module."""
    try:
        kind = json.loads(row["metadata"] or "")["kind"]
    except (KeyError, TypeError, ValueError) as error:
        raise StepError(f"row {row['id']}: no module; its metadata says no kind") from error
    if len(code := code.strip()) > LONGEST:
        return False
    found = outputs(code, kind)
    return found is not None and found == outputs(row["answer"].strip(), kind)


@lru_cache(maxsize=4096)
def outputs(code: str, kind: str) -> tuple[int, ...] | None:
    """Return the outputs for abc = 000 … 111, or the states of a register over all input sequences.

    A sequence starts in either state with a reset. None if the text is not code.
    """
    table = simulate(code, 3)
    if table is None:
        return None
    at = [table >> (7 - i) & 1 for i in range(8)]
    if kind == "out":
        return tuple(at)
    seen = []
    for state, first, *rest in product((0, 1), (0, 1), *[range(4)] * CYCLES):
        state = at[4 * first + 2 * state + 1]
        seen.append(state)
        for given in rest:
            state = at[4 * (given >> 1) + 2 * state + (given & 1)]
            seen.append(state)
    return tuple(seen)


def _drawn(operators: int, rng: np.random.Generator) -> str:
    """Return a random expression with `operators` binary operators."""
    if operators == 0:
        return ("~" if rng.random() < 0.25 else "") + "abc"[int(rng.integers(3))]
    left = int(rng.integers(operators))
    sides = [_drawn(left, rng), _drawn(operators - 1 - left, rng)]
    sign = "&|^"[int(rng.integers(3))]
    return sign.join(side if re.fullmatch(r"~?[abc]", side) else f"({side})" for side in sides)


def _held_out(text: str, test_share: float) -> bool:
    digest = hashlib.sha256(f"modules\n{text}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < test_share * 2**64
