"""Programming problems for small models: one-line functions of a list, and three lines of arithmetic.

`sort, double` asks for `[v*2 for v in sorted(x)]`, `a, add b, double, take 3` for `x=a+b;y=x*2;x=y-3`; any program that
passes the tests in the row's metadata is correct. `y=a*2;x=y-b | a=3,b=1` asks for the variables: `x=5,y=6`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.sandbox.programs import parse_literal, trace_variables
from learning.toy_tasks.execution import LanguageError, ProgramError, Value, evaluate, execute
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row

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
Inputs = dict[str, Value]
"""Values of a program's inputs by name."""
SPACE = 60
"""Draws per requested problem after which the space counts as exhausted."""


def list_functions(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    level: Annotated[int, Field(ge=1, le=3)] = 1,
) -> list[Row]:
    """Generate `size` one-line functions of a list `x` in `level` steps, with four tests each (10, 90, 720 exist)."""

    def draw_program(rng: np.random.Generator) -> tuple[str, str]:
        names = list(LIST_STEPS)
        steps = [names[int(i)] for i in rng.choice(len(names), size=level, replace=False)]
        code = "x"
        for step in steps:
            code = LIST_STEPS[step].format(f"({code})" if "+" in code and step in ("reverse", "tail", "head") else code)
        return ", ".join(steps), code

    def draw_inputs(rng: np.random.Generator) -> Inputs:
        return {"x": [int(v) for v in rng.integers(-9, 10, size=int(rng.integers(3, 7)))]}

    return _problems(
        "list_functions", size, seed, split, test_share, draw_program, draw_inputs, result=None, level=level
    )


def straight_programs(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    lines: Annotated[int, Field(ge=1, le=4)] = 3,
) -> list[Row]:
    """Generate `size` programs of `lines` assignments that end with a value in `x`, with four test cases each."""

    def draw_program(rng: np.random.Generator) -> tuple[str, str]:
        steps = [int(i) for i in rng.integers(len(NUM_STEPS), size=lines)]
        names = ["a", *("xy"[(lines - i) % 2] for i in range(1, lines + 1))]
        code = [f"{names[i + 1]}={WRITTEN[step].format(names[i])}" for i, step in enumerate(steps)]
        return ", ".join(["a", *(NUM_STEPS[step] for step in steps)]), ";".join(code)

    return _problems(
        "straight_programs", size, seed, split, test_share, draw_program, draw_numbers, result="x", lines=lines
    )


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


def draw_numbers(rng: np.random.Generator) -> Inputs:
    """Return random inputs of an arithmetic program."""
    return {name: int(rng.integers(DIGITS)) for name in "ab"}


def state_row(program: str, inputs: Inputs, problem: str) -> Row:
    """Return the problem of predicting a program's variables; `problem` is the id of the problem that it solves.

    Raise ProgramError if the program fails.
    """
    text = f"{program} | {_listed(inputs)}"
    try:
        states = execute(program, inputs)
    except LanguageError as error:
        traced = trace_variables(program, variables=inputs)
        values = {name: parse_literal(text) for name, text in (traced or {}).items()}
        states = {name: value[0] for name, value in values.items() if value is not None}
        if not states or any(type(value) is not int for value in states.values()):
            raise ProgramError(f"{error}, and Python finds no whole numbers in it") from error
    return {
        "id": f"states-{hash_text(text)}",
        "prompt": [{"role": "user", "content": text}],
        "answer": _listed(dict(sorted(states.items()))),
        "family": "program_states",
        "metadata": json.dumps({"states": states, "program": program, "problem": problem}, sort_keys=True),
    }


def _listed(values: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def _problems(
    family: str,
    size: int,
    seed: int,
    split: str,
    test_share: float,
    draw_program: Callable[[np.random.Generator], tuple[str, str]],
    draw_inputs: Callable[[np.random.Generator], Inputs],
    *,
    result: str | None,
    **options: int,
) -> list[Row]:
    """Return distinct problems of one split, by text, with tests; raise StepError if there are too few."""
    rng = np.random.default_rng([seed, *options.values()])

    def draw(rows: dict[str, Row]) -> Row | None:
        text, code = draw_program(rng)
        digest = hash_text(f"{family}\n{text}")
        if digest in rows or not is_in_split(digest, split, test_share):
            return None
        cases = [draw_inputs(rng) for _ in range(CASES)]
        results = [evaluate(code, case) if result is None else execute(code, case)[result] for case in cases]
        tests = [list(pair) for pair in zip(cases, results, strict=True)]
        return make_row(family, text, code, {**options, "result": result, "tests": tests})

    return draw_rows(draw, size, SPACE * size + 1000, family, split, f"lower `size` or raise `{next(iter(options))}`")
