"""Countdown in short form: `7, 2, 4 -> 1` asks for an expression that uses each number at most once and equals 1.

A problem may have many correct answers. Numbers and target are positive integers, divisions have no remainder.
"""

import hashlib
import json
from collections.abc import Iterator
from itertools import permutations
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

Step = tuple[int, str, int, int]
"""Left number, sign, right number, result."""
SPACE = 40_000
"""Draws after which the space counts as exhausted."""


def countdown(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    numbers: Annotated[int, Field(ge=2, le=4)] = 3,
    largest: Annotated[int, Field(ge=2, le=20)] = 9,
    target: Annotated[int, Field(ge=1, le=200)] = 30,
) -> list[Row]:
    """Generate `size` solvable countdown problems for the train or test split; `answer` is one solution.

    `numbers` numbers up to `largest`, targets up to `target`. The split depends on the problem's numbers, regardless of
    order, and on its target. Raise StepError if the space holds too few.
    """
    rng = np.random.default_rng([seed, numbers, largest, target])
    rows: dict[str, Row] = {}
    for _ in range(SPACE):
        drawn = [int(n) for n in rng.integers(1, largest + 1, numbers)]
        wanted = int(rng.integers(1, target + 1))
        row = _row(drawn, wanted)
        if row["id"] in rows or _held_out(drawn, wanted, test_share) != (split == "test"):
            continue
        answer = next((text for _, text in solutions(drawn, wanted)), None)
        if answer is not None:
            rows[row["id"]] = row | {"answer": answer}
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"countdown: found {len(rows)} {split} problems of {size}; widen `largest` or `target`")


def worked_countdown(row: Row, rng: np.random.Generator, *, marker: str = "#") -> str:
    """Write a random solution step by step, then as an expression: `7-4=3,3-2=1#7-4-2`.

    Raise StepError if the row is not a countdown problem.
    """
    numbers, wanted = problem_of(row)
    found = list(solutions(numbers, wanted))
    if not found:
        raise StepError(f"teacher worked_countdown: row {row['id']} has no solution")
    steps, text = found[int(rng.integers(len(found)))]
    return ",".join(f"{a}{sign}{b}={c}" for a, sign, b, c in steps) + marker + text


def problem_of(row: Row) -> tuple[list[int], int]:
    """Return numbers and target of a row; raise StepError if it is not a countdown problem."""
    try:
        kept = json.loads(row["metadata"] or "")
        return [int(n) for n in kept["numbers"]], int(kept["target"])
    except (KeyError, TypeError, ValueError) as error:
        raise StepError(f"row {row['id']}: not a countdown problem; its metadata says no numbers and target") from error


def solutions(numbers: list[int], target: int) -> Iterator[tuple[list[Step], str]]:
    """Yield every chain of steps from left to right over all numbers that ends at the target, with its expression."""
    for first, *rest in sorted(set(permutations(numbers))):
        yield from _chains(first, rest, str(first), [], target)


def _chains(total: int, rest: list[int], text: str, steps: list[Step], target: int) -> Iterator[tuple[list[Step], str]]:
    if not rest:
        if total == target:
            yield steps, text
        return
    number, *later = rest
    for sign in "+-*/":
        if (result := _apply(total, sign, number)) is None:
            continue
        left = f"({text})" if sign in "*/" and any(s in text for s in "+-") else text
        yield from _chains(result, later, f"{left}{sign}{number}", [*steps, (total, sign, number, result)], target)


def _apply(left: int, sign: str, right: int) -> int | None:
    """Return the result of a step; None if it is negative or not an integer."""
    if sign == "/":
        return left // right if right and left % right == 0 else None
    result = {"+": left + right, "-": left - right, "*": left * right}[sign]
    return result if result >= 0 else None


def _row(numbers: list[int], target: int) -> dict[str, Any]:
    text = f"{', '.join(map(str, numbers))} -> {target}"
    return {
        "id": hashlib.sha256(f"countdown\n{text}".encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "family": "countdown",
        "metadata": json.dumps({"numbers": numbers, "target": target}),
    }


def _held_out(numbers: list[int], target: int, test_share: float) -> bool:
    digest = hashlib.sha256(f"countdown\n{sorted(numbers)}\n{target}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < test_share * 2**64
