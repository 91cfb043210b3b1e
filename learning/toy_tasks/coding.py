"""Programming problems for small models: one-line functions of a list, and three lines of arithmetic.

`sort, double` asks for `[v*2 for v in sorted(x)]`, `a, add b, double, take 3` for `x=a+b;y=x*2;x=y-3`; any program that
passes the tests in the row's metadata is correct. `y=a*2;x=y-b | a=3,b=1` asks for the variables: `x=5,y=6`.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.execution import evaluate, execute
from schemas.errors import StepError

LIST_STEPS = {
    "reverse": "{}[::-1]",
    "sort": "sorted({})",
    "double": "[v*2 for v in {}]",
    "square": "[v*v for v in {}]",
    "negate": "[-v for v in {}]",
    "add 1": "[v+1 for v in {}]",
    "positive": "[v for v in {} if v>0]",
    "tail": "{}[1:]",
    "head": "{}[:2]",
    "twice": "{0}+{0}",
}
"""Name of a step to its template in Python."""
NUM_STEPS = ("add b", "take b", "double", "triple", "add 1", "take 3", "add a", "negate")
WRITTEN = ("{}+b", "{}-b", "{}*2", "{}*3", "{}+1", "{}-3", "{}+a", "-{}")
CASES = 4
DIGITS = 10
"""Inputs of arithmetic programs are whole numbers below this."""
SPACE = 60
"""Draws per requested problem after which the space counts as exhausted."""
Size = Annotated[int, Field(ge=1)]
Split = Literal["train", "test"]
TestShare = Annotated[float, Field(gt=0, lt=1)]


def list_functions(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    level: Annotated[int, Field(ge=1, le=3)] = 1,
) -> list[Row]:
    """Generate `size` one-line functions of a list `x` in `level` steps, with four tests each (10, 90, 720 exist)."""

    def drawn(rng: np.random.Generator) -> tuple[str, str]:
        names = list(LIST_STEPS)
        steps = [names[int(i)] for i in rng.choice(len(names), size=level, replace=False)]
        code = "x"
        for step in steps:
            code = LIST_STEPS[step].format(f"({code})" if "+" in code and step in ("reverse", "tail", "head") else code)
        return ", ".join(steps), code

    def case(rng: np.random.Generator) -> dict[str, Any]:
        return {"x": [int(v) for v in rng.integers(-9, 10, size=int(rng.integers(3, 7)))]}

    return _problems("list_functions", size, seed, split, test_share, drawn, case, result=None, level=level)


def straight_programs(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    lines: Annotated[int, Field(ge=1, le=4)] = 3,
) -> list[Row]:
    """Generate `size` programs of `lines` assignments that end with a value in `x`, with four test cases each."""

    def drawn(rng: np.random.Generator) -> tuple[str, str]:
        steps = [int(i) for i in rng.integers(len(NUM_STEPS), size=lines)]
        names = ["a", *("xy"[(lines - i) % 2] for i in range(1, lines + 1))]
        code = [f"{names[i + 1]}={WRITTEN[step].format(names[i])}" for i, step in enumerate(steps)]
        return ", ".join(["a", *(NUM_STEPS[step] for step in steps)]), ";".join(code)

    return _problems("straight_programs", size, seed, split, test_share, drawn, numbers, result="x", lines=lines)


def program_states(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    lines: Annotated[int, Field(ge=1, le=4)] = 3,
    inputs: Annotated[int, Field(ge=1, le=DIGITS**2)] = 1,
) -> list[Row]:
    """Ask for the final variables of `size` programs, on `inputs` inputs each: `y=a*2;x=y-b | a=3,b=1`."""
    rows = straight_programs(size=size, seed=seed, split=split, test_share=test_share, lines=lines)
    rng = np.random.default_rng([seed, 1])
    drawn = ((row, int(i)) for row in rows for i in rng.choice(DIGITS**2, size=inputs, replace=False))
    return [state_row(row["answer"], {"a": i // DIGITS, "b": i % DIGITS}, row["id"]) for row, i in drawn]


def numbers(rng: np.random.Generator) -> dict[str, Any]:
    """Return random inputs of an arithmetic program."""
    return {name: int(rng.integers(DIGITS)) for name in "ab"}


def state_row(program: str, given: dict[str, Any], problem: str) -> dict[str, Any]:
    """Return the problem of predicting a program's variables; `problem` is the id of the problem that it solves.

    Raise ProgramError if the program fails.
    """
    text = f"{program} | {_listed(given)}"
    states = execute(program, given)
    return {
        "id": "states-" + hashlib.sha256(text.encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "answer": _listed(dict(sorted(states.items()))),
        "family": "program_states",
        "metadata": json.dumps({"states": states, "program": program, "problem": problem}, sort_keys=True),
    }


def _listed(values: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def _problems(
    family: str,
    size: int,
    seed: int,
    split: str,
    test_share: float,
    drawn: Callable[[np.random.Generator], tuple[str, str]],
    case: Callable[[np.random.Generator], dict[str, Any]],
    *,
    result: str | None,
    **options: int,
) -> list[Row]:
    """Return distinct problems of one split, by text, with tests; raise StepError if there are too few."""
    rng = np.random.default_rng([seed, *options.values()])
    rows: dict[str, Row] = {}
    for _ in range(SPACE * size + 1000):
        text, code = drawn(rng)
        if text in rows or _held_out(f"{family}\n{text}", test_share) != (split == "test"):
            continue
        cases = [case(rng) for _ in range(CASES)]
        wanted = [evaluate(code, given) if result is None else execute(code, given)[result] for given in cases]
        tests = [list(pair) for pair in zip(cases, wanted, strict=True)]
        rows[text] = {
            "id": hashlib.sha256(f"{family}\n{text}".encode()).hexdigest()[:16],
            "prompt": [{"role": "user", "content": text}],
            "answer": code,
            "family": family,
            "metadata": json.dumps({"tests": tests, "result": result, **options}, sort_keys=True),
        }
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"{family}: found {len(rows)} {split} problems of {size}; lower `size` or take more steps")


def _held_out(text: str, test_share: float) -> bool:
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") < test_share * 2**64
